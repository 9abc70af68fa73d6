// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Messages} from "../src/Messages.sol";
import {Settlement} from "../src/Settlement.sol";
import {TokenHolder} from "../src/TokenHolder.sol";
import {Deployed, Hashes} from "./Deployed.sol";
import {Trees} from "./Trees.sol";

/// @dev A token that can be told to misbehave in one way.
contract HostileToken is ERC20 {
    enum Mode {
        Plain,
        Fee, // delivers one unit less
        FalseReturn, // refuses by returning false
        Blacklist, // reverts for one recipient
        Reenter // calls back while it transfers
    }

    Mode public mode;
    address public victim;
    bytes public callback;
    bytes public answer;

    constructor() ERC20("Hostile", "HOST") {}

    function mint(address account, uint256 amount) external {
        _mint(account, amount);
    }

    function behave(Mode mode_, address victim_, bytes calldata callback_) external {
        (mode, victim, callback) = (mode_, victim_, callback_);
    }

    function transfer(address to, uint256 amount) public override returns (bool) {
        if (mode == Mode.FalseReturn) return false;
        _obey(to);
        return super.transfer(to, amount);
    }

    function transferFrom(address from, address to, uint256 amount) public override returns (bool) {
        if (mode == Mode.FalseReturn) return false;
        _obey(to);
        if (mode == Mode.Fee) _burn(from, 1);
        return super.transferFrom(from, to, mode == Mode.Fee ? amount - 1 : amount);
    }

    function _obey(address to) private {
        if (mode == Mode.Blacklist) require(to != victim, "blacklisted");
        if (mode == Mode.Reenter) {
            (bool ok, bytes memory data) = victim.call(callback);
            answer = ok ? bytes("done") : data;
        }
    }
}

contract TokensTest is Deployed {
    HostileToken internal hostile;

    function setUp() public override {
        vm.warp(1_800_000_000);
        demo = demoValues();
        hostile = new HostileToken();
        deploy(hostile);
        hashes = new Hashes();
        give(poster, 1_000e6);
        give(provider, 1_000e6);
    }

    function give(address account, uint96 amount) internal override {
        hostile.mint(account, amount);
        vm.startPrank(account);
        hostile.approve(address(escrow), type(uint256).max);
        hostile.approve(address(stakes), type(uint256).max);
        vm.stopPrank();
    }

    function test_fee_on_transfer__refused_at_every_entrance() public {
        (, bytes32 job) = openJob(10e6);
        hostile.behave(HostileToken.Mode.Fee, address(0), "");
        Messages.JobHeader memory header = newHeader();
        vm.startPrank(poster);
        vm.expectPartialRevert(TokenHolder.WrongAmountReceived.selector);
        escrow.open(header, 10e6);
        vm.expectPartialRevert(TokenHolder.WrongAmountReceived.selector);
        escrow.topUp(job, 10e6);
        vm.expectPartialRevert(TokenHolder.WrongAmountReceived.selector);
        stakes.stake(10e6);
        vm.stopPrank();
        assertEq(escrow.remaining(job), 10e6, "unchanged");
    }

    function test_false_return__refused() public {
        hostile.behave(HostileToken.Mode.FalseReturn, address(0), "");
        Messages.JobHeader memory header = newHeader();
        vm.prank(poster);
        vm.expectPartialRevert(SafeERC20.SafeERC20FailedOperation.selector);
        escrow.open(header, 10e6);
    }

    function test_token_without_permit__allowance_decides() public {
        Messages.JobSpec memory spec = Messages.JobSpec(
            poster, coordinator, keccak256("details"), 10e6, CAP, uint64(block.timestamp + 1 days), 1
        );
        bytes32 job = escrow.openWithPermit(spec, sign(hashes.jobSpec(spec), POSTER_KEY), noPermit());
        assertEq(escrow.remaining(job), 10e6, "opened");
    }

    function test_blacklisted_recipient__stops_only_his_own_claim() public {
        (Messages.JobHeader memory header,) = openJob(100e6);
        Trees.Payout[] memory payouts = new Trees.Payout[](2);
        payouts[0] = Trees.Payout(address(0x1000), 0, 4e6);
        payouts[1] = Trees.Payout(address(0x2000), 0, 6e6);
        (bytes32 root, uint96 sum) = Trees.settlementRoot(payouts);
        Settlement.Statement[] memory statements = one(statement(header, 1, 10e6));
        vm.prank(proposer);
        settlement.propose(1, root, sum, statements);
        later(5);
        settlement.finalize();
        hostile.behave(HostileToken.Mode.Blacklist, address(0x1000), "");
        vm.expectRevert();
        claim(payouts, 0);
        claim(payouts, 1);
        assertEq(settlement.claimed(address(0x1000)), 0, "not booked as paid");
        hostile.behave(HostileToken.Mode.Plain, address(0), "");
        claim(payouts, 0);
        assertEq(hostile.balanceOf(address(0x1000)), 4e6, "paid when it can be");
    }

    function test_reentrant_deposit__refused() public {
        (, bytes32 job) = openJob(10e6);
        bytes memory again = abi.encodeCall(JobEscrow.topUp, (job, 1e6));
        hostile.behave(HostileToken.Mode.Reenter, address(escrow), again);
        vm.prank(poster);
        escrow.topUp(job, 5e6);
        bytes4 refused = ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector;
        assertEq(keccak256(hostile.answer()), keccak256(abi.encodePacked(refused)), "refused");
        assertEq(escrow.remaining(job), 15e6, "counted once");
    }

    function test_reentrant_claim__pays_once() public {
        (Messages.JobHeader memory header,) = openJob(100e6);
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        later(5);
        settlement.finalize();
        bytes memory again = abi.encodeCall(settlement.claim, (provider, 10e6, payouts[0].jobsRoot, 0, ""));
        hostile.behave(HostileToken.Mode.Reenter, address(settlement), again);
        uint256 before = hostile.balanceOf(provider);
        claim(payouts, 0);
        assertEq(hostile.balanceOf(provider) - before, 10e6, "once");
        assertTrue(bytes4(hostile.answer()) == bytes4(keccak256("NothingToClaim(address,uint256)")), "refused");
    }

    function test_reentrant_refund__pays_once() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        Messages.Seal memory seal = lastSeal(job, 1, 30e6);
        escrow.requestClose(header, seal, signSeal(seal), noLeaf());
        later(40);
        hostile.behave(HostileToken.Mode.Reenter, address(escrow), abi.encodeCall(JobEscrow.refund, (job)));
        uint256 before = hostile.balanceOf(poster);
        escrow.refund(job);
        assertEq(hostile.balanceOf(poster) - before, 70e6, "once");
        assertTrue(bytes4(hostile.answer()) == JobEscrow.NothingToRefund.selector, "refused");
    }

    function test_donations__change_nothing() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        hostile.mint(address(escrow), 7e6);
        hostile.mint(address(vault), 7e6);
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        later(5);
        post(2, header, 10e6, provider, 10e6);
        claim(payouts, 0);
        assertEq(settlement.claimed(provider), 10e6, "claimed");
        assertEq(escrow.remaining(job), 90e6, "remaining");
    }
}

