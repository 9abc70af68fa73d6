// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {Parameters} from "../src/Parameters.sol";
import {TestToken} from "../src/TestToken.sol";
import {Deployed} from "./Deployed.sol";

contract ParametersTest is Deployed {
    function test_values__as_deployed() public view {
        uint64[] memory values = parameters.values();
        for (uint256 i = 0; i < values.length; ++i) {
            assertEq(values[i], demoValues()[i], "value");
            assertEq(parameters.value(Parameters.Key(i)), values[i], "value by key");
        }
        (uint64 window, uint64 minLength, uint64 cap) = parameters.epochTerms();
        assertTrue(window == 5 && minLength == 2 && cap == 1e15, "epoch terms");
        (uint64 response, uint64 refundDelay) = parameters.closingTerms();
        assertTrue(response == 10 && refundDelay == 40, "closing terms");
    }

    function test_constructor__wrong_count_bounds_or_relation__reverts() public {
        uint64[] memory values = new uint64[](19);
        vm.expectPartialRevert(Parameters.WrongCount.selector);
        this.newParameters(values);
        for (uint256 i = 0; i < 20; ++i) {
            (uint64 min, uint64 max) = parameters.bounds(Parameters.Key(i));
            values = demoValues();
            values[i] = max + 1;
            vm.expectPartialRevert(Parameters.OutOfBounds.selector);
            this.newParameters(values);
            if (min == 0) continue;
            values[i] = min - 1;
            vm.expectPartialRevert(Parameters.OutOfBounds.selector);
            this.newParameters(values);
        }
        _expectRelation(5, 34, 1); // refund delay < response window + epoch + challenge window
        _expectRelation(1, 21, 2); // min epoch length > epoch length
        _expectRelation(13, 19, 3); // notice < epoch length
        _expectRelation(12, 8_001, 4); // burn + bounty > 100 %
    }

    function test_change__takes_effect_only_after_notice() public {
        vm.prank(admin);
        parameters.schedule(Parameters.Key.ChallengeWindow, 7);
        later(19);
        assertEq(parameters.value(Parameters.Key.ChallengeWindow), 5, "old value");
        vm.expectPartialRevert(Parameters.NoticeRunning.selector);
        parameters.enact(Parameters.Key.ChallengeWindow);
        later(1);
        vm.prank(stranger);
        parameters.enact(Parameters.Key.ChallengeWindow);
        assertEq(parameters.value(Parameters.Key.ChallengeWindow), 7, "new value");
        assertEq(parameters.value(Parameters.Key.MinEpochLength), 2, "neighbour untouched");
        vm.expectPartialRevert(Parameters.NothingScheduled.selector);
        parameters.enact(Parameters.Key.ChallengeWindow);
    }

    function test_change__cancelled__never_takes_effect() public {
        vm.startPrank(admin);
        vm.expectPartialRevert(Parameters.NothingScheduled.selector);
        parameters.cancel(Parameters.Key.ChallengeWindow);
        parameters.schedule(Parameters.Key.ChallengeWindow, 7);
        parameters.cancel(Parameters.Key.ChallengeWindow);
        vm.stopPrank();
        later(20);
        vm.expectPartialRevert(Parameters.NothingScheduled.selector);
        parameters.enact(Parameters.Key.ChallengeWindow);
    }

    function test_change__scheduled_again__waits_anew() public {
        vm.startPrank(admin);
        parameters.schedule(Parameters.Key.ChallengeWindow, 7);
        later(19);
        parameters.schedule(Parameters.Key.ChallengeWindow, 8);
        vm.stopPrank();
        later(1);
        vm.expectPartialRevert(Parameters.NoticeRunning.selector);
        parameters.enact(Parameters.Key.ChallengeWindow);
    }

    function test_change__stranger_or_out_of_bounds__reverts() public {
        vm.expectPartialRevert(Parameters.NotAdmin.selector);
        parameters.schedule(Parameters.Key.ChallengeWindow, 7);
        vm.expectPartialRevert(Parameters.NotAdmin.selector);
        parameters.cancel(Parameters.Key.ChallengeWindow);
        vm.prank(admin);
        vm.expectPartialRevert(Parameters.OutOfBounds.selector);
        parameters.schedule(Parameters.Key.ChallengeWindow, 1);
    }

    function test_change__breaks_a_relation__is_not_enacted() public {
        vm.prank(admin);
        parameters.schedule(Parameters.Key.RefundDelay, 34);
        later(20);
        vm.expectPartialRevert(Parameters.RelationBroken.selector);
        parameters.enact(Parameters.Key.RefundDelay);
        assertEq(parameters.value(Parameters.Key.RefundDelay), 40, "old value");
    }

    function testFuzz_change__any_key_and_value__touches_nothing_else(uint8 key, uint64 value) public {
        Parameters.Key chosen = Parameters.Key(bound(key, 0, 19));
        (uint64 min, uint64 max) = parameters.bounds(chosen);
        value = uint64(bound(value, min, max));
        uint64[] memory before = parameters.values();
        vm.prank(admin);
        parameters.schedule(chosen, value);
        later(20);
        try parameters.enact(chosen) {
            before[uint256(chosen)] = value;
        } catch {}
        uint64[] memory found = parameters.values();
        for (uint256 i = 0; i < 20; ++i) {
            assertEq(found[i], before[i], "value");
        }
    }

    function test_faucet__within_caps_and_by_minter_only() public {
        bytes memory args = abi.encode(minter, uint256(100), uint256(150));
        TestToken small = TestToken(create("TestToken", args));
        vm.expectPartialRevert(TestToken.NotMinter.selector);
        small.faucet(stranger, 1);
        vm.startPrank(minter);
        vm.expectPartialRevert(TestToken.FaucetCallCap.selector);
        small.faucet(stranger, 101);
        small.faucet(stranger, 100);
        vm.expectPartialRevert(TestToken.FaucetAccountCap.selector);
        small.faucet(stranger, 51);
        small.faucet(stranger, 50);
        vm.stopPrank();
        assertEq(small.balanceOf(stranger), 150, "balance");
        assertEq(small.decimals(), 6, "decimals");
    }

    function newParameters(uint64[] memory values) external returns (address) {
        return create("Parameters", abi.encode(admin, values));
    }

    function _expectRelation(uint256 key, uint64 value, uint8 rule) private {
        uint64[] memory values = demoValues();
        values[key] = value;
        vm.expectRevert(abi.encodeWithSelector(Parameters.RelationBroken.selector, rule));
        this.newParameters(values);
    }
}
