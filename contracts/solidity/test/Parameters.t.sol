// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {Parameters} from "../src/Parameters.sol";
import {Deployed} from "./Deployed.sol";

contract ParametersTest is Deployed {
    Parameters.Key internal constant CHANGED = Parameters.Key.VestingSteps;

    function test_values__as_deployed() public view {
        uint64[7] memory values = parameters.values();
        for (uint256 i = 0; i < values.length; ++i) {
            assertEq(values[i], demoValues()[i], "value");
            assertEq(parameters.value(Parameters.Key(i)), values[i], "value by key");
        }
    }

    function test_constructor__out_of_bounds__reverts() public {
        for (uint256 i = 0; i < 7; ++i) {
            (uint64 min, uint64 max) = parameters.bounds(Parameters.Key(i));
            uint64[7] memory values = demoValues();
            values[i] = max + 1;
            vm.expectPartialRevert(Parameters.OutOfBounds.selector);
            this.newParameters(values);
            values[i] = min - 1;
            vm.expectPartialRevert(Parameters.OutOfBounds.selector);
            this.newParameters(values);
        }
    }

    function test_change__takes_effect_only_after_notice() public {
        vm.prank(admin);
        parameters.schedule(CHANGED, 7);
        later(19);
        assertEq(parameters.value(CHANGED), 5, "old value");
        vm.expectPartialRevert(Parameters.NoticeRunning.selector);
        parameters.enact(CHANGED);
        later(1);
        vm.prank(stranger);
        parameters.enact(CHANGED);
        assertEq(parameters.value(CHANGED), 7, "new value");
        vm.expectPartialRevert(Parameters.NothingScheduled.selector);
        parameters.enact(CHANGED);
    }

    function test_change__cancelled__never_takes_effect() public {
        vm.startPrank(admin);
        vm.expectPartialRevert(Parameters.NothingScheduled.selector);
        parameters.cancel(CHANGED);
        parameters.schedule(CHANGED, 7);
        parameters.cancel(CHANGED);
        vm.stopPrank();
        later(20);
        vm.expectPartialRevert(Parameters.NothingScheduled.selector);
        parameters.enact(CHANGED);
    }

    function test_change__scheduled_again__waits_anew() public {
        vm.startPrank(admin);
        parameters.schedule(CHANGED, 7);
        later(19);
        parameters.schedule(CHANGED, 8);
        vm.stopPrank();
        later(1);
        vm.expectPartialRevert(Parameters.NoticeRunning.selector);
        parameters.enact(CHANGED);
    }

    function test_change__stranger_or_out_of_bounds__reverts() public {
        vm.expectPartialRevert(Parameters.NotAdmin.selector);
        parameters.schedule(CHANGED, 7);
        vm.expectPartialRevert(Parameters.NotAdmin.selector);
        parameters.cancel(CHANGED);
        vm.prank(admin);
        vm.expectPartialRevert(Parameters.OutOfBounds.selector);
        parameters.schedule(CHANGED, 0);
    }

    function testFuzz_change__any_key_and_value__touches_nothing_else(uint8 key, uint64 value) public {
        Parameters.Key chosen = Parameters.Key(bound(key, 0, 6));
        (uint64 min, uint64 max) = parameters.bounds(chosen);
        value = uint64(bound(value, min, max));
        uint64[7] memory wanted = parameters.values();
        wanted[uint256(chosen)] = value;
        vm.prank(admin);
        parameters.schedule(chosen, value);
        later(20);
        parameters.enact(chosen);
        uint64[7] memory found = parameters.values();
        for (uint256 i = 0; i < 7; ++i) {
            assertEq(found[i], wanted[i], "value");
        }
    }

    function newParameters(uint64[7] memory values) external returns (address) {
        return create("Parameters", abi.encode(admin, values));
    }
}
