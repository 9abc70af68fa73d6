// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {TestToken} from "../src/TestToken.sol";
import {Deployed} from "./Deployed.sol";

/// @dev A token without permit that can be told to misbehave in one way.
contract HostileToken is ERC20 {
    enum Mode {
        Plain,
        FalseReturn, // refuses by returning false
        Blacklist, // reverts for one recipient
        Reenter // calls back while it transfers
    }

    Mode public mode;
    address public victim;
    bytes public callback;
    bool public done;

    constructor() ERC20("Hostile", "HOST") {}

    function mint(address account, uint256 amount) external {
        _mint(account, amount);
    }

    function behave(Mode mode_, address victim_, bytes calldata callback_) external {
        (mode, victim, callback) = (mode_, victim_, callback_);
    }

    function transfer(address to, uint256 amount) public override returns (bool) {
        return _obey(to) && super.transfer(to, amount);
    }

    function transferFrom(address from, address to, uint256 amount) public override returns (bool) {
        return _obey(to) && super.transferFrom(from, to, amount);
    }

    function _obey(address to) private returns (bool) {
        if (mode == Mode.Blacklist) require(to != victim, "blacklisted");
        if (mode == Mode.Reenter) {
            mode = Mode.Plain;
            (done,) = victim.call(callback);
        }
        return mode != Mode.FalseReturn;
    }
}

/// @dev What a token can do to the escrow, and the caps of our own test token.
contract TokensTest is Deployed {
    HostileToken internal hostile;

    function setUp() public override {
        super.setUp();
        hostile = new HostileToken();
        (token, escrow) = (hostile, escrowOf(hostile));
        hostile.mint(poster, 1_000e6);
        vm.prank(poster);
        hostile.approve(address(escrow), type(uint256).max);
    }

    function test_false_return__refused_and_nothing_is_booked() public {
        hostile.behave(HostileToken.Mode.FalseReturn, address(0), "");
        vm.prank(poster);
        vm.expectPartialRevert(SafeERC20.SafeERC20FailedOperation.selector);
        escrow.deposit(worker, 10e6);
        assertEq(free(worker), 0, "free");
    }

    function test_token_without_permit__allowance_decides() public {
        bytes[] memory calls = new bytes[](2);
        calls[0] = abi.encodeCall(escrow.permit, (poster, 1, 1, 27, "", ""));
        calls[1] = abi.encodeCall(escrow.deposit, (worker, 10e6));
        vm.prank(poster);
        escrow.multicall(calls);
        assertEq(free(worker), 10e6, "free");
    }

    function test_blacklisted_account__stops_only_its_own_withdrawal() public {
        (JobEscrow.JobHeader memory header,) = openJob(100e6, 100e6, 1);
        grant(header, asking(worker, 5e6));
        grant(header, asking(friend, 5e6));
        hostile.behave(HostileToken.Mode.Blacklist, worker, "");
        pay(header, worker, 5e6, 5e6);
        pay(header, friend, 5e6, 5e6);
        vm.prank(friend);
        escrow.withdraw(friend, 5e6);
        vm.prank(worker);
        vm.expectRevert("blacklisted");
        escrow.withdraw(worker, 5e6);
        assertEq(free(worker), 5e6, "still there");
    }

    /// @dev Balances are written before tokens move.
    function test_reentrant_withdrawal__pays_once() public {
        vm.prank(poster);
        escrow.deposit(address(hostile), 5e6);
        vm.prank(poster);
        escrow.deposit(worker, 5e6);
        bytes memory again = abi.encodeCall(escrow.withdraw, (address(hostile), 5e6));
        hostile.behave(HostileToken.Mode.Reenter, address(escrow), again);

        vm.prank(address(hostile));
        escrow.withdraw(address(hostile), 5e6);

        assertTrue(!hostile.done(), "refused");
        assertEq(hostile.balanceOf(address(hostile)), 5e6, "once");
    }

    /// @dev Money that is booked before it arrives cannot leave unless it arrives.
    function test_reentrant_deposit__takes_nothing_of_others() public {
        vm.prank(poster);
        escrow.deposit(worker, 5e6);
        bytes memory out = abi.encodeCall(escrow.withdraw, (friend, 5e6));
        hostile.behave(HostileToken.Mode.Reenter, address(escrow), out);

        vm.prank(friend);
        vm.expectRevert();
        escrow.deposit(address(hostile), 5e6);

        assertEq(hostile.balanceOf(address(escrow)), 5e6, "held");
    }

    function test_donation__belongs_to_nobody() public {
        hostile.mint(address(escrow), 7e6);
        vm.prank(worker);
        vm.expectPartialRevert(JobEscrow.InsufficientBalance.selector);
        escrow.withdraw(worker, 1);
    }

    function test_faucet__within_caps_and_by_minter_only() public {
        TestToken small = TestToken(create("TestToken", abi.encode(minter, uint256(100), uint256(150))));
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
}
