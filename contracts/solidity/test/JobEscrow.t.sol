// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {JobClosing} from "../src/JobClosing.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Messages} from "../src/Messages.sol";
import {SignedMessages} from "../src/SignedMessages.sol";
import {TestToken} from "../src/TestToken.sol";
import {TokenHolder} from "../src/TokenHolder.sol";
import {Deployed} from "./Deployed.sol";

contract JobEscrowTest is Deployed {
    uint256 internal constant NEWCOMER_KEY = 0xBEEF;

    function test_open__poster__holds_the_budget() public {
        uint256 before = token.balanceOf(poster);
        (, bytes32 job) = openJob(100e6);
        assertEq(before - token.balanceOf(poster), 100e6, "paid in");
        assertEq(escrow.remaining(job), 100e6, "remaining");
        assertEq(uint256(escrow.stateOf(job)), uint256(JobClosing.JobState.Open), "state");
    }

    function test_open__for_somebody_else__reverts() public {
        Messages.JobHeader memory header = newHeader();
        vm.prank(stranger);
        vm.expectPartialRevert(JobEscrow.NotPoster.selector);
        escrow.open(header, 1e6);
    }

    function test_open__bad_input__reverts() public {
        Messages.JobHeader memory header = newHeader();
        vm.startPrank(poster);
        vm.expectPartialRevert(TokenHolder.ZeroAmount.selector);
        escrow.open(header, 0);
        vm.expectPartialRevert(JobEscrow.BudgetTooLarge.selector);
        escrow.open(header, uint96(type(uint80).max) + 1);
        header.deadline = uint64(block.timestamp);
        vm.expectPartialRevert(JobEscrow.DeadlinePassed.selector);
        escrow.open(header, 1e6);
        header = newHeader();
        escrow.open(header, 1e6);
        vm.expectPartialRevert(JobEscrow.JobExists.selector);
        escrow.open(header, 1e6);
        vm.stopPrank();
    }

    function test_open__no_allowance__reverts_and_leaves_nothing() public {
        Messages.JobHeader memory header = newHeader();
        header.poster = address(0xFACE);
        vm.prank(address(0xFACE));
        vm.expectRevert();
        escrow.open(header, 1e6);
        assertEq(uint256(escrow.stateOf(idOf(header))), uint256(JobClosing.JobState.None), "state");
    }

    function test_open_with_permit__newcomer_without_gas__is_relayed() public {
        (Messages.JobSpec memory spec, bytes memory signature) = _newcomer(40e6);
        TokenHolder.Permit memory permit = _permit(40e6);
        vm.prank(stranger);
        bytes32 job = escrow.openWithPermit(spec, signature, permit);
        assertEq(escrow.remaining(job), 40e6, "budget");
        assertEq(job, idOf(_headerOf(spec)), "id");
        assertEq(token.balanceOf(spec.poster), 0, "all of it");
    }

    function test_open_with_permit__permit_used_by_front_runner__still_opens() public {
        (Messages.JobSpec memory spec, bytes memory signature) = _newcomer(40e6);
        TokenHolder.Permit memory permit = _permit(40e6);
        TestToken(address(token)).permit(
            spec.poster, address(escrow), permit.value, permit.deadline, permit.v, permit.r, permit.s
        );
        bytes32 job = escrow.openWithPermit(spec, signature, permit);
        assertEq(escrow.remaining(job), 40e6, "budget");
    }

    function test_open_with_permit__wrong_or_no_permit__reverts() public {
        (Messages.JobSpec memory spec, bytes memory signature) = _newcomer(40e6);
        vm.expectRevert();
        escrow.openWithPermit(spec, signature, noPermit());
    }

    function test_open_with_permit__altered_or_foreign_spec__reverts() public {
        (Messages.JobSpec memory spec, bytes memory signature) = _newcomer(40e6);
        TokenHolder.Permit memory permit = _permit(40e6);
        spec.budget = 39e6;
        vm.expectPartialRevert(SignedMessages.WrongSigner.selector);
        escrow.openWithPermit(spec, signature, permit);
        spec.budget = 40e6;
        bytes memory foreign = sign(hashes.jobSpec(spec), STRANGER_KEY);
        vm.expectPartialRevert(SignedMessages.WrongSigner.selector);
        escrow.openWithPermit(spec, foreign, permit);
        vm.expectPartialRevert(ECDSA.ECDSAInvalidSignatureLength.selector);
        escrow.openWithPermit(spec, hex"00", permit);
    }

    function test_open_with_permit__twice__reverts() public {
        (Messages.JobSpec memory spec, bytes memory signature) = _newcomer(40e6);
        TokenHolder.Permit memory permit = _permit(40e6);
        escrow.openWithPermit(spec, signature, permit);
        vm.expectPartialRevert(JobEscrow.JobExists.selector);
        escrow.openWithPermit(spec, signature, permit);
    }

    function test_top_up__anyone__adds_to_the_budget() public {
        (, bytes32 job) = openJob(10e6);
        vm.prank(stranger);
        escrow.topUp(job, 5e6);
        assertEq(escrow.remaining(job), 15e6, "remaining");
        vm.prank(stranger);
        vm.expectPartialRevert(TokenHolder.ZeroAmount.selector);
        escrow.topUp(job, 0);
        vm.prank(stranger);
        vm.expectPartialRevert(JobEscrow.UnknownJob.selector);
        escrow.topUp(keccak256("no job"), 1e6);
    }

    function test_refund__open_or_closing_or_too_early__reverts() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        vm.expectPartialRevert(JobClosing.NotClosed.selector);
        escrow.refund(job);
        _close(header, 30e6);
        vm.expectPartialRevert(JobClosing.NotClosed.selector);
        escrow.refund(job);
        later(39);
        vm.expectPartialRevert(JobEscrow.RefundNotDue.selector);
        escrow.refund(job);
    }

    function test_refund__after_delay__poster_gets_what_was_not_earned_once() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        _close(header, 30e6);
        later(40);
        uint256 before = token.balanceOf(poster);
        vm.prank(stranger);
        escrow.refund(job);
        assertEq(token.balanceOf(poster) - before, 70e6, "refund");
        vm.expectPartialRevert(JobEscrow.NothingToRefund.selector);
        escrow.refund(job);
        post(1, header, 30e6, provider, 30e6); // what is earned is still there
        assertEq(escrow.remaining(job), 0, "remaining");
    }

    function test_refund__of_unused_job__leaves_an_id_that_cannot_be_opened_again() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        _close(header, 0);
        later(40);
        escrow.refund(job);
        assertEq(escrow.remaining(job), 0, "remaining");
        assertEq(uint256(escrow.stateOf(job)), uint256(JobClosing.JobState.Closed), "state");
        vm.prank(poster);
        vm.expectPartialRevert(JobEscrow.JobExists.selector);
        escrow.open(header, 1e6);
    }

    function test_refund__earned_more_than_deposited__nothing() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(10e6);
        _close(header, 30e6);
        later(40);
        vm.expectPartialRevert(JobEscrow.NothingToRefund.selector);
        escrow.refund(job);
    }

    function test_refund__topped_up_after_refund__poster_gets_it() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        _close(header, 30e6);
        later(40);
        escrow.refund(job);
        vm.prank(stranger);
        escrow.topUp(job, 4e6);
        uint256 before = token.balanceOf(poster);
        escrow.refund(job);
        assertEq(token.balanceOf(poster) - before, 4e6, "credit");
    }

    function _close(Messages.JobHeader memory header, uint96 vested) private {
        Messages.Seal memory seal = lastSeal(idOf(header), 9, vested);
        escrow.requestClose(header, seal, signSeal(seal), noLeaf());
    }

    function _newcomer(uint96 budget) private returns (Messages.JobSpec memory spec, bytes memory signature) {
        address newcomer = vm.addr(NEWCOMER_KEY);
        vm.prank(minter);
        TestToken(address(token)).faucet(newcomer, budget);
        spec = Messages.JobSpec(
            newcomer, coordinator, keccak256("details"), budget, CAP, uint64(block.timestamp + 1 days), 7
        );
        signature = sign(hashes.jobSpec(spec), NEWCOMER_KEY);
    }

    function _permit(uint256 value) private view returns (TokenHolder.Permit memory) {
        return permitOf(NEWCOMER_KEY, value);
    }

    function _headerOf(Messages.JobSpec memory spec) private view returns (Messages.JobHeader memory) {
        return Messages.JobHeader(
            spec.poster, spec.coordinator, hashes.jobSpec(spec), spec.epochCap, spec.deadline, spec.nonce
        );
    }
}
