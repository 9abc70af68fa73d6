// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {JobClosing} from "../src/JobClosing.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Messages} from "../src/Messages.sol";
import {SignedMessages} from "../src/SignedMessages.sol";
import {SumTree} from "../src/SumTree.sol";
import {Deployed} from "./Deployed.sol";
import {Trees} from "./Trees.sol";

contract JobClosingTest is Deployed {
    Messages.JobHeader internal header;
    bytes32 internal job;

    function setUp() public override {
        super.setUp();
        (header, job) = openJob(100e6);
    }

    // --- the last seal

    function test_close__last_seal__due_is_what_it_vested() public {
        _close(lastSeal(job, 9, 30e6));
        _assertState(JobClosing.JobState.Closing);
        later(10);
        _assertState(JobClosing.JobState.Closed);
        assertEq(escrow.closingOf(job).due, 30e6, "due");
        assertTrue(!escrow.isOver(job), "not over");
        later(30);
        assertTrue(escrow.isOver(job), "over");
    }

    function test_close__last_seal_with_frozen_pay__keeps_it_from_the_poster() public {
        Messages.Seal memory seal = lastSeal(job, 9, 30e6);
        seal.earned = 34e6;
        _close(seal);
        later(40);
        uint256 before = token.balanceOf(poster);
        escrow.refund(job);
        assertEq(token.balanceOf(poster) - before, 66e6, "refund = escrow - earned");
        assertEq(escrow.closingOf(job).due, 30e6, "due = vested");
    }

    function test_close__foreign_or_altered_seal__reverts() public {
        Messages.Seal memory seal = lastSeal(job, 9, 30e6);
        bytes memory signature = sign(hashes.seal(seal), STRANGER_KEY);
        vm.expectPartialRevert(SignedMessages.WrongCoordinator.selector);
        escrow.requestClose(header, seal, signature, noLeaf());
        signature = signSeal(seal);
        seal.vested = 29e6;
        vm.expectPartialRevert(SignedMessages.WrongCoordinator.selector);
        escrow.requestClose(header, seal, signature, noLeaf());
        (, bytes32 other) = openJob(1e6);
        seal = lastSeal(other, 9, 0);
        _expectClose(SignedMessages.WrongJob.selector, seal);
    }

    function test_close__unknown_or_closing_job__reverts() public {
        Messages.JobHeader memory unknown = newHeader();
        Messages.Seal memory seal = lastSeal(idOf(unknown), 9, 0);
        bytes memory signature = signSeal(seal);
        vm.expectPartialRevert(JobClosing.NotOpen.selector);
        escrow.requestClose(unknown, seal, signature, noLeaf());
        vm.expectPartialRevert(JobClosing.NotOpen.selector);
        escrow.requestCloseUnsealed(unknown);
        _close(lastSeal(job, 9, 30e6));
        _expectClose(JobClosing.NotOpen.selector, lastSeal(job, 10, 30e6));
        later(10);
        _expectClose(JobClosing.NotOpen.selector, lastSeal(job, 10, 30e6));
    }

    // --- of two seals the greater earned total counts, then the later step

    function test_answer__greater_earned__counts_even_if_earlier() public {
        _close(lastSeal(job, 9, 1e6));
        _answer(_vestedAll(8, 30e6));
        assertEq(escrow.closingOf(job).due, 30e6, "due");
        _expectAnswer(JobClosing.NotBetter.selector, lastSeal(job, 10, 29e6));
    }

    function test_answer__same_earned__later_step_counts() public {
        _close(lastSeal(job, 9, 30e6));
        _expectAnswer(JobClosing.NotBetter.selector, lastSeal(job, 9, 30e6));
        _expectAnswer(JobClosing.NotBetter.selector, lastSeal(job, 8, 30e6));
        _answer(lastSeal(job, 10, 30e6));
        assertEq(escrow.closingOf(job).seals, 11, "step + 1");
    }

    function test_answer__outside_response_window__reverts() public {
        _expectAnswer(JobClosing.NotClosing.selector, lastSeal(job, 10, 30e6));
        _close(lastSeal(job, 9, 30e6));
        later(10);
        _expectAnswer(JobClosing.NotClosing.selector, lastSeal(job, 10, 31e6));
    }

    // --- silence

    function test_silence__later_seal_in_time__keeps_the_job_open() public {
        _close(_vestedAll(5, 10e6));
        later(59);
        _answer(_vestedAll(6, 10e6));
        _assertState(JobClosing.JobState.Open);
        later(59);
        _expectClose(JobClosing.NotSilent.selector, _vestedAll(6, 10e6));
        later(1);
        _expectClose(JobClosing.NotSilent.selector, _vestedAll(5, 10e6));
        _close(_vestedAll(6, 10e6));
        _assertState(JobClosing.JobState.Closing);
    }

    function test_silence__nobody_answers__closes_after_limit_and_response() public {
        _close(_vestedAll(5, 10e6));
        later(69);
        _assertState(JobClosing.JobState.Closing);
        later(1);
        _assertState(JobClosing.JobState.Closed);
        later(29);
        vm.expectPartialRevert(JobEscrow.RefundNotDue.selector);
        escrow.refund(job);
        later(1);
        escrow.refund(job);
    }

    function test_silence__later_seal_in_response_window__replaces() public {
        _close(_vestedAll(5, 10e6));
        later(60);
        _answer(_vestedAll(6, 12e6));
        _assertState(JobClosing.JobState.Closing);
        assertEq(escrow.closingOf(job).due, 12e6, "due");
    }

    function test_silence__same_step_with_more_earned__replaces() public {
        _close(_vestedAll(5, 10e6));
        _answer(_vestedAll(5, 11e6));
        _assertState(JobClosing.JobState.Closing);
        assertEq(escrow.closingOf(job).due, 11e6, "due");
    }

    function test_silence__last_seal_shown__makes_it_final() public {
        _close(_vestedAll(5, 10e6));
        later(30);
        _answer(lastSeal(job, 9, 20e6));
        later(9);
        _expectAnswer(JobClosing.NotBetter.selector, _vestedAll(10, 20e6 - 1));
        later(1);
        _assertState(JobClosing.JobState.Closed);
        assertEq(escrow.closingOf(job).refundableAt, block.timestamp + 30, "40 s after the last seal was shown");
    }

    function test_deadline_passed__any_seal_closes_and_is_not_undone() public {
        later(1 days + 1);
        _close(_vestedAll(5, 10e6));
        _answer(_vestedAll(6, 11e6));
        _assertState(JobClosing.JobState.Closing);
        later(10);
        _assertState(JobClosing.JobState.Closed);
    }

    // --- no seal at all

    function test_unsealed__poster_before_deadline__any_seal_keeps_it_open() public {
        vm.prank(stranger);
        vm.expectPartialRevert(JobClosing.PosterOnly.selector);
        escrow.requestCloseUnsealed(header);
        vm.prank(poster);
        escrow.requestCloseUnsealed(header);
        _answer(_vestedAll(0, 0));
        _assertState(JobClosing.JobState.Open);
        later(61);
        vm.prank(poster);
        vm.expectPartialRevert(JobClosing.HasSeals.selector);
        escrow.requestCloseUnsealed(header);
    }

    function test_unsealed__job_that_was_debited__reverts() public {
        post(1, header, 10e6, provider, 10e6);
        later(1 days + 1);
        vm.expectPartialRevert(JobClosing.HasSeals.selector);
        escrow.requestCloseUnsealed(header);
    }

    function test_unsealed__past_deadline__anyone_and_all_is_refunded() public {
        later(1 days + 1);
        vm.prank(stranger);
        escrow.requestCloseUnsealed(header);
        later(40);
        uint256 before = token.balanceOf(poster);
        escrow.refund(job);
        assertEq(token.balanceOf(poster) - before, 100e6, "refund");
    }

    function test_unsealed__past_deadline__a_seal_replaces() public {
        later(1 days + 1);
        escrow.requestCloseUnsealed(header);
        _answer(_vestedAll(1, 3e6));
        later(10);
        assertEq(escrow.closingOf(job).due, 3e6, "due");
    }

    // --- earned and not frozen

    function test_due__frozen_leaf__is_not_due() public {
        (Messages.Seal memory seal, JobClosing.FirstPayLeaf memory first) = _paySeal(address(1), 4e6);
        escrow.requestClose(header, seal, signSeal(seal), first);
        assertEq(escrow.closingOf(job).due, 26e6, "earned less frozen");
        assertEq(escrow.closingOf(job).earned, 30e6, "earned");
    }

    function test_due__no_frozen_leaf__all_that_was_earned() public {
        (Messages.Seal memory seal, JobClosing.FirstPayLeaf memory first) = _paySeal(address(0xA), 4e6);
        escrow.requestClose(header, seal, signSeal(seal), first);
        assertEq(escrow.closingOf(job).due, 30e6, "earned");
    }

    function test_due__altered_leaf__reverts() public {
        (Messages.Seal memory seal, JobClosing.FirstPayLeaf memory first) = _paySeal(address(1), 4e6);
        bytes memory signature = signSeal(seal);
        vm.expectPartialRevert(JobClosing.WrongPayLeaf.selector);
        escrow.requestClose(header, seal, signature, noLeaf());
        first.account = address(2);
        vm.expectPartialRevert(JobClosing.WrongPayLeaf.selector);
        escrow.requestClose(header, seal, signature, first);
        first.account = address(1);
        first.path = abi.encodePacked(first.path, uint8(0));
        vm.expectPartialRevert(SumTree.MalformedPath.selector);
        escrow.requestClose(header, seal, signature, first);
    }

    function test_due__leaf_that_is_not_the_leftmost__reverts() public {
        Trees.Pay[] memory pays = _pays(address(1), 4e6);
        (Messages.Seal memory seal,) = _paySeal(address(1), 4e6);
        (uint256 sides, bytes memory path) = Trees.payPath(pays, 2);
        assertTrue(sides != 0, "not the leftmost");
        bytes memory signature = signSeal(seal);
        vm.expectPartialRevert(JobClosing.WrongPayLeaf.selector);
        escrow.requestClose(
            header, seal, signature, JobClosing.FirstPayLeaf(pays[2].account, pays[2].earned, pays[2].vested, path)
        );
    }

    function test_due__reserved_zero_account__reverts() public {
        (Messages.Seal memory seal, JobClosing.FirstPayLeaf memory first) = _paySeal(address(0), 4e6);
        bytes memory signature = signSeal(seal);
        vm.expectPartialRevert(JobClosing.WrongPayLeaf.selector);
        escrow.requestClose(header, seal, signature, first);
    }

    // --- settling a closed job

    function test_settle__closed_job__pays_what_is_due_without_a_seal() public {
        (Messages.Seal memory seal, JobClosing.FirstPayLeaf memory first) = _paySeal(address(1), 4e6);
        later(1 days + 1);
        escrow.requestClose(header, seal, signSeal(seal), first);
        later(10);
        _proposeClosed(1, 26e6);
        assertEq(escrow.remaining(job), 74e6, "remaining");
        later(40);
        escrow.refund(job);
        assertEq(escrow.remaining(job), 4e6, "the frozen part stays");
    }

    function test_settle__closed_job__in_pieces_of_the_epoch_cap() public {
        _close(lastSeal(job, 9, 80e6));
        later(10);
        _proposeClosed(1, CAP);
        later(5);
        _proposeClosed(2, 80e6);
        later(5);
        _proposeClosed(3, 80e6);
    }

    function test_settle__closed_job__never_more_than_deposited() public {
        _close(lastSeal(job, 9, 500e6));
        later(10);
        _proposeClosed(1, CAP);
        later(5);
        _proposeClosed(2, 100e6);
        vm.prank(stranger);
        escrow.topUp(job, 20e6); // for example from the coordinator's bond
        later(5);
        _proposeClosed(3, 120e6);
    }

    function test_settle__closed_job__a_seal_vests_at_most_what_is_due() public {
        _close(lastSeal(job, 9, 20e6));
        later(10);
        post(1, header, 15e6, provider, 15e6);
        later(5);
        post(2, header, 30e6, provider, 20e6); // the statement says 30, the closing 20
    }

    function test_settle__closing_job__still_takes_seals() public {
        _close(lastSeal(job, 9, 20e6));
        post(1, header, 15e6, provider, 15e6);
        later(10);
        _proposeClosed(2, 20e6);
    }

    function _vestedAll(uint64 step, uint96 amount) private view returns (Messages.Seal memory) {
        return sealOf(job, step, amount, amount);
    }

    function _pays(address first, uint96 unvested) private pure returns (Trees.Pay[] memory pays) {
        pays = new Trees.Pay[](3);
        pays[0] = Trees.Pay(first, unvested, 0);
        pays[1] = Trees.Pay(address(0x1000), 10e6, 10e6);
        pays[2] = Trees.Pay(address(0x2000), 30e6 - 10e6 - unvested, 5e6);
    }

    function _paySeal(address account, uint96 unvested)
        private
        view
        returns (Messages.Seal memory seal, JobClosing.FirstPayLeaf memory first)
    {
        Trees.Pay[] memory pays = _pays(account, unvested);
        (bytes32 root, uint96 earned, uint96 vested) = Trees.payRoot(pays);
        seal = sealOf(job, 5, earned, vested);
        seal.payRoot = root;
        (, bytes memory path) = Trees.payPath(pays, 0);
        first = JobClosing.FirstPayLeaf(account, unvested, 0, path);
    }

    function _close(Messages.Seal memory seal) private {
        escrow.requestClose(header, seal, signSeal(seal), noLeaf());
    }

    function _answer(Messages.Seal memory seal) private {
        escrow.answerClose(header, seal, signSeal(seal), noLeaf());
    }

    function _expectClose(bytes4 selector, Messages.Seal memory seal) private {
        bytes memory signature = signSeal(seal);
        vm.expectPartialRevert(selector);
        escrow.requestClose(header, seal, signature, noLeaf());
    }

    function _expectAnswer(bytes4 selector, Messages.Seal memory seal) private {
        bytes memory signature = signSeal(seal);
        vm.expectPartialRevert(selector);
        escrow.answerClose(header, seal, signature, noLeaf());
    }

    function _proposeClosed(uint48 epoch, uint96 total) private {
        (bytes32 root, uint96 sum) = Trees.settlementRoot(onePayout(provider, total));
        vm.prank(proposer);
        settlement.propose(epoch, root, sum, one(closedStatement(header)));
    }

    function _assertState(JobClosing.JobState state) private view {
        assertEq(uint256(escrow.stateOf(job)), uint256(state), "state");
    }
}
