// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EpochWindow} from "../src/EpochWindow.sol";
import {JobClosing} from "../src/JobClosing.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Messages} from "../src/Messages.sol";
import {PayoutVault} from "../src/PayoutVault.sol";
import {SealAnchor} from "../src/SealAnchor.sol";
import {Settlement} from "../src/Settlement.sol";
import {SignedMessages} from "../src/SignedMessages.sol";
import {StakeRegistry} from "../src/StakeRegistry.sol";
import {SumTree} from "../src/SumTree.sol";
import {Deployed} from "./Deployed.sol";
import {Trees} from "./Trees.sol";

contract SettlementTest is Deployed {
    Messages.JobHeader internal header;
    bytes32 internal job;

    function setUp() public override {
        super.setUp();
        (header, job) = openJob(100e6);
    }

    // --- propose

    function test_propose__signed_seal__debits_and_starts_window() public {
        post(1, header, 10e6, provider, 10e6);

        (uint96 deposited, uint96 debited) = escrow.fundsOf(job);
        assertEq(deposited, 100e6, "deposited");
        assertEq(debited, 10e6, "debited");
        (EpochWindow.Epoch memory newest, EpochWindow.EpochState state) = settlement.newestEpoch();
        assertEq(newest.endsAt, block.timestamp + 5, "window end");
        assertEq(uint256(state), uint256(EpochWindow.EpochState.Posted), "state");
        assertEq(token.balanceOf(address(escrow)), 100e6, "tokens stay until final");
    }

    function test_propose__stranger__reverts() public {
        vm.expectPartialRevert(Settlement.NotProposer.selector);
        settlement.propose(1, 0, 0, new Settlement.Statement[](0));
    }

    function test_propose__wrong_number__reverts() public {
        _expectPropose(EpochWindow.WrongEpoch.selector, 2, 10e6, one(statement(header, 1, 10e6)));
        _expectPropose(EpochWindow.WrongEpoch.selector, 0, 10e6, one(statement(header, 1, 10e6)));
    }

    function test_propose__sum_not_debits__reverts() public {
        _expectPropose(Settlement.WrongSum.selector, 1, 10e6 + 1, one(statement(header, 1, 10e6)));
        _expectPropose(Settlement.WrongSum.selector, 1, 10e6 - 1, one(statement(header, 1, 10e6)));
    }

    function test_propose__pending__is_not_overwritten() public {
        post(1, header, 10e6, provider, 10e6);
        later(4);
        _expectPropose(EpochWindow.EpochPending.selector, 2, 20e6, one(statement(header, 2, 20e6)));
        later(1);
        post(2, header, 20e6, provider, 20e6);
        assertEq(uint256(settlement.stateOf(1)), uint256(EpochWindow.EpochState.Final), "first is final");
    }

    function test_propose__too_soon__reverts() public {
        uint64[] memory values = demoValues();
        values[1] = 15;
        _redeploy(values);
        post(1, header, 10e6, provider, 10e6);
        later(14);
        _expectPropose(EpochWindow.EpochTooEarly.selector, 2, 20e6, one(statement(header, 2, 20e6)));
        later(1);
        post(2, header, 20e6, provider, 20e6);
    }

    function test_propose__other_signer__reverts() public {
        Messages.Seal memory seal = sealOf(job, 1, 10e6, 10e6);
        _expectPropose(
            SignedMessages.WrongCoordinator.selector, 1, 10e6, one(stated(header, seal, STRANGER_KEY))
        );
    }

    function test_propose__seal_of_other_job__reverts() public {
        (, bytes32 other) = openJob(100e6);
        Messages.Seal memory seal = sealOf(other, 1, 10e6, 10e6);
        _expectPropose(SignedMessages.WrongJob.selector, 1, 10e6, one(stated(header, seal, COORDINATOR_KEY)));
    }

    function test_propose__altered_seal__reverts() public {
        Settlement.Statement memory it = statement(header, 1, 10e6);
        it.seal.vested += 1;
        _expectPropose(SignedMessages.WrongCoordinator.selector, 1, 10e6 + 1, one(it));
    }

    function test_propose__altered_header__is_another_job() public {
        Settlement.Statement memory it = statement(header, 1, 10e6);
        it.header.epochCap = type(uint96).max;
        _expectPropose(SignedMessages.WrongJob.selector, 1, 10e6, one(it));
    }

    function test_propose__malleable_signature__reverts() public {
        Settlement.Statement memory it = statement(header, 1, 10e6);
        uint256 order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        it.signature.s = bytes32(order - uint256(it.signature.s));
        it.signature.v = it.signature.v == 27 ? 28 : 27;
        _expectPropose(ECDSA.ECDSAInvalidSignatureS.selector, 1, 10e6, one(it));
    }

    function test_propose__signature_of_other_chain__reverts() public {
        Settlement.Statement memory it = statement(header, 1, 10e6);
        vm.chainId(999);
        _expectPropose(SignedMessages.WrongCoordinator.selector, 1, 10e6, one(it));
    }

    function test_propose__signature_of_other_deployment__reverts() public {
        Settlement.Statement memory it = statement(header, 1, 10e6);
        _redeploy(demoValues());
        vm.prank(poster); // the same job, opened again there
        escrow.open(it.header, 100e6);
        _expectPropose(SignedMessages.WrongCoordinator.selector, 1, 10e6, one(it));
    }

    function test_propose__vests_more_than_earned__reverts() public {
        Messages.Seal memory seal = sealOf(job, 1, 10e6, 10e6 + 1);
        _expectPropose(
            SignedMessages.VestedAboveEarned.selector, 1, 10e6 + 1, one(stated(header, seal, COORDINATOR_KEY))
        );
    }

    function test_propose__same_job_twice__reverts() public {
        Settlement.Statement[] memory twice = new Settlement.Statement[](2);
        twice[0] = statement(header, 1, 10e6);
        twice[1] = statement(header, 2, 20e6);
        _expectPropose(JobEscrow.AlreadyDebited.selector, 1, 20e6, twice);
    }

    function test_propose__vested_falls__reverts() public {
        post(1, header, 10e6, provider, 10e6);
        later(5);
        _expectPropose(JobEscrow.VestedBelowDebited.selector, 2, 10e6, one(statement(header, 2, 10e6 - 1)));
    }

    function test_propose__above_epoch_cap__reverts() public {
        _expectPropose(JobEscrow.EpochCapExceeded.selector, 1, CAP + 1, one(statement(header, 1, CAP + 1)));
        post(1, header, CAP, provider, CAP);
    }

    function test_propose__above_protocol_cap__reverts() public {
        uint64[] memory values = demoValues();
        values[2] = 2e6;
        _redeploy(values);
        _expectPropose(JobEscrow.EpochCapExceeded.selector, 1, 2e6 + 1, one(statement(header, 1, 2e6 + 1)));
        post(1, header, 2e6, provider, 2e6);
    }

    function test_propose__more_than_deposited__reverts() public {
        (Messages.JobHeader memory small,) = openJob(5e6);
        _expectPropose(JobEscrow.Overdrawn.selector, 1, 5e6 + 1, one(statement(small, 1, 5e6 + 1)));
    }

    function test_propose__unknown_job__reverts() public {
        Messages.JobHeader memory unknown = newHeader();
        _expectPropose(JobEscrow.Overdrawn.selector, 1, 1, one(statement(unknown, 1, 1)));
    }

    function test_propose__closed_form_for_open_job__reverts() public {
        _expectPropose(JobClosing.NotClosed.selector, 1, 0, one(closedStatement(header)));
    }

    function test_propose__nothing_new__posts_the_same_sum() public {
        post(1, header, 10e6, provider, 10e6);
        later(5);
        post(2, header, 10e6, provider, 10e6);
        later(5);
        settlement.finalize();
        (uint96 funded,) = settlement.totals();
        assertEq(funded, 10e6, "funded");
    }

    // --- windows

    function test_finalize__window_open__reverts() public {
        vm.expectPartialRevert(Settlement.NothingToFinalize.selector);
        settlement.finalize();
        post(1, header, 10e6, provider, 10e6);
        later(4);
        vm.expectPartialRevert(EpochWindow.EpochPending.selector);
        settlement.finalize();
    }

    function test_finalize__window_over__moves_money_once() public {
        post(1, header, 10e6, provider, 10e6);
        later(5);
        settlement.finalize();
        assertEq(token.balanceOf(address(vault)), 10e6, "vault");
        assertEq(escrow.released(), 10e6, "released");
        vm.expectPartialRevert(Settlement.NothingToFinalize.selector);
        settlement.finalize();
    }

    function test_reject__stranger__reverts() public {
        post(1, header, 10e6, provider, 10e6);
        vm.expectPartialRevert(EpochWindow.NotDisputes.selector);
        settlement.announceRejection(1, 0);
        vm.expectPartialRevert(EpochWindow.NotDisputes.selector);
        settlement.rejectDebits(1, new bytes32[](0));
    }

    function test_announce__outside_window__reverts() public {
        _expectAnnounce(1);
        post(1, header, 10e6, provider, 10e6);
        _expectAnnounce(2);
        later(5);
        _expectAnnounce(1);
    }

    function test_reject__after_announcement__restores_exactly() public {
        post(1, header, 10e6, provider, 10e6);
        later(5);
        post(2, header, 25e6, provider, 25e6);
        bytes32 finalBefore = settlement.finalRoot();
        _announce(2);
        later(4);
        _expectReject(2);
        later(1);
        vm.prank(disputes);
        settlement.rejectDebits(2, _jobs());

        (, uint96 debited) = escrow.fundsOf(job);
        (uint96 funded,) = settlement.totals();
        assertEq(debited, 10e6, "only the rejected debit came back");
        assertEq(funded, 10e6, "funded");
        assertEq(settlement.finalRoot(), finalBefore, "final root");
        assertEq(uint256(settlement.stateOf(2)), uint256(EpochWindow.EpochState.Rejected), "state");
        assertTrue(settlement.newestRoot() != finalBefore, "newest root is the rejected one");
    }

    function test_reject__twice__reverts() public {
        post(1, header, 10e6, provider, 10e6);
        _announce(1);
        later(5);
        vm.prank(disputes);
        settlement.rejectDebits(1, _jobs());
        _expectReject(1);
        vm.expectPartialRevert(JobEscrow.NothingToRestore.selector);
        settlement.restoreDebits(1, _jobs());
        vm.expectPartialRevert(Settlement.NothingToFinalize.selector);
        settlement.finalize();
    }

    function test_reject__not_announced__reverts() public {
        post(1, header, 10e6, provider, 10e6);
        _expectReject(1);
    }

    function test_reject__execution_window_over__epoch_becomes_final() public {
        post(1, header, 10e6, provider, 10e6);
        _announce(1);
        later(24);
        vm.expectPartialRevert(EpochWindow.EpochPending.selector);
        settlement.finalize();
        later(1);
        _expectReject(1);
        assertEq(uint256(settlement.stateOf(1)), uint256(EpochWindow.EpochState.Final), "by time alone");
        settlement.finalize();
        assertEq(token.balanceOf(address(vault)), 10e6, "vault");
    }

    function test_restore__by_anyone_after_rejection() public {
        post(1, header, 10e6, provider, 10e6);
        vm.expectPartialRevert(EpochWindow.NotRejected.selector);
        settlement.restoreDebits(1, _jobs());
        _announce(1);
        later(5);
        vm.prank(disputes);
        settlement.rejectDebits(1, new bytes32[](0));
        settlement.restoreDebits(1, _jobs());
        assertEq(escrow.remaining(job), 100e6, "remaining");
    }

    function test_restore__forgotten__next_debit_restores_first() public {
        post(1, header, 10e6, provider, 10e6);
        _announce(1);
        later(5);
        vm.prank(disputes);
        settlement.rejectDebits(1, new bytes32[](0));
        post(2, header, 12e6, provider, 12e6);
        later(5);
        settlement.finalize();
        (uint96 funded,) = settlement.totals();
        (, uint96 debited) = escrow.fundsOf(job);
        assertEq(funded, 12e6, "funded");
        assertEq(debited, 12e6, "debited once");
        vm.expectPartialRevert(JobEscrow.NothingToRestore.selector);
        settlement.restoreDebits(1, _jobs());
    }

    function test_restore__older_debit__is_left_alone() public {
        (Messages.JobHeader memory second, bytes32 other) = openJob(100e6);
        post(1, header, 10e6, provider, 10e6);
        later(5);
        post(2, second, 5e6, provider, 15e6);
        _announce(2);
        later(5);
        vm.prank(disputes);
        settlement.rejectDebits(2, new bytes32[](0));
        post(3, header, 11e6, provider, 11e6);
        (, uint96 debited) = escrow.fundsOf(job);
        assertEq(debited, 11e6, "epoch 1 stays debited");
        bytes32[] memory others = new bytes32[](1);
        others[0] = other;
        settlement.restoreDebits(2, others);
        assertEq(escrow.remaining(other), 100e6, "other job restored");
    }

    function test_reject__then_next_number__follows() public {
        post(1, header, 10e6, provider, 10e6);
        _announce(1);
        later(5);
        vm.prank(disputes);
        settlement.rejectDebits(1, _jobs());
        _expectPropose(EpochWindow.WrongEpoch.selector, 1, 10e6, one(statement(header, 1, 10e6)));
        Trees.Payout[] memory payouts = post(2, header, 10e6, provider, 10e6);
        later(5);
        settlement.finalize();
        claim(payouts, 0);
        assertEq(uint256(settlement.stateOf(1)), uint256(EpochWindow.EpochState.Rejected), "state of 1");
        assertEq(uint256(settlement.stateOf(2)), uint256(EpochWindow.EpochState.Final), "state of 2");
        assertEq(uint256(settlement.stateOf(3)), uint256(EpochWindow.EpochState.None), "state of 3");
    }

    // --- claims

    function test_claim__final_root__pays_anyone_for_anyone() public {
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        uint256 before = token.balanceOf(provider);
        later(5);
        settlement.finalize();
        vm.prank(stranger);
        claim(payouts, 0);
        assertEq(token.balanceOf(provider) - before, 10e6, "paid");
        (, uint96 paid) = settlement.totals();
        assertEq(paid, 10e6, "paid total");
        vm.expectPartialRevert(Settlement.NothingToClaim.selector);
        claim(payouts, 0);
    }

    function test_claim__lazily_final__fetches_money_from_escrow() public {
        Trees.Payout[] memory first = post(1, header, 10e6, provider, 10e6);
        later(5);
        post(2, header, 20e6, provider, 20e6);
        assertEq(token.balanceOf(address(vault)), 0, "nothing moved yet");
        claim(first, 0);
        assertEq(settlement.claimed(provider), 10e6, "claimed");
        assertEq(escrow.released(), 10e6, "released only what is final");
    }

    function test_claim__pending_root__reverts() public {
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        vm.expectPartialRevert(Settlement.WrongProof.selector);
        claim(payouts, 0);
    }

    function test_claim__next_epoch__pays_the_difference() public {
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        later(5);
        settlement.finalize();
        claim(payouts, 0);
        uint256 before = token.balanceOf(provider);
        payouts = post(2, header, 17e6, provider, 17e6);
        later(5);
        settlement.finalize();
        claim(payouts, 0);
        assertEq(token.balanceOf(provider) - before, 7e6, "difference");
    }

    function test_claim__altered_leaf_or_path__reverts() public {
        (Trees.Payout[] memory payouts, uint256 sides, bytes memory path) = _threeAccounts();
        Trees.Payout memory it = payouts[1];
        vm.expectPartialRevert(Settlement.WrongProof.selector);
        settlement.claim(it.account, it.cumulative + 1, it.jobsRoot, sides, path);
        vm.expectPartialRevert(Settlement.WrongProof.selector);
        settlement.claim(stranger, it.cumulative, it.jobsRoot, sides, path);
        vm.expectPartialRevert(Settlement.WrongProof.selector);
        settlement.claim(it.account, it.cumulative, keccak256("other"), sides, path);
        vm.expectPartialRevert(Settlement.WrongProof.selector);
        settlement.claim(it.account, it.cumulative, it.jobsRoot, sides ^ 1, path);
        vm.expectPartialRevert(SumTree.MalformedPath.selector);
        settlement.claim(it.account, it.cumulative, it.jobsRoot, sides, abi.encodePacked(path, uint8(1)));
        settlement.claim(it.account, it.cumulative, it.jobsRoot, sides, path);
    }

    function test_claim__root_grants_more_than_funded__stops_at_funded() public {
        // Epoch 2 lowers A after A claimed, so the leaves of both roots add up to more than was funded.
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        later(5);
        settlement.finalize();
        claim(payouts, 0);
        payouts = post(2, header, 12e6, stranger, 12e6);
        later(5);
        settlement.finalize();
        vm.expectPartialRevert(Settlement.ExceedsFunded.selector);
        claim(payouts, 0);
    }

    function test_claim__any_order__same_balances() public {
        (Trees.Payout[] memory payouts,,) = _threeAccounts();
        claim(payouts, 2);
        claim(payouts, 0);
        claim(payouts, 1);
        for (uint256 i = 0; i < 3; ++i) {
            assertEq(settlement.claimed(payouts[i].account), payouts[i].cumulative, "claimed");
        }
        (uint96 funded, uint96 paid) = settlement.totals();
        assertEq(paid, funded, "all paid");
        assertEq(token.balanceOf(address(vault)), 0, "vault empty");
    }

    // --- who may call what, and wiring

    function test_vault_and_escrow__stranger__reverts() public {
        vm.expectPartialRevert(PayoutVault.NotSettlement.selector);
        vault.pay(stranger, 1, 1);
        vm.expectPartialRevert(JobEscrow.NotSettlement.selector);
        escrow.debit(job, 1, 1, 1, 0);
        vm.expectPartialRevert(JobEscrow.NotSettlement.selector);
        escrow.restore(job, 1);
        vm.expectPartialRevert(JobEscrow.NotSettlementOrVault.selector);
        escrow.release(1);
    }

    function test_constructor__contract_of_other_deployment__reverts() public {
        vm.expectPartialRevert(Settlement.WrongWiring.selector);
        newSettlement(); // a second one; the others belong to the first
    }

    function test_constructor__names_its_contracts() public view {
        assertEq(address(settlement.token()), address(token), "token");
        assertEq(address(settlement.escrow()), address(escrow), "escrow");
        assertEq(address(settlement.stakes()), address(stakes), "stakes");
        assertEq(address(settlement.seals()), address(seals), "seals");
        assertEq(address(settlement.vault()), address(vault), "vault");
        assertEq(address(settlement.parameters()), address(parameters), "parameters");
        assertEq(settlement.proposer(), proposer, "proposer");
        assertEq(settlement.disputes(), disputes, "disputes");
    }

    function _threeAccounts() private returns (Trees.Payout[] memory payouts, uint256 sides, bytes memory path) {
        payouts = new Trees.Payout[](3);
        payouts[0] = Trees.Payout(address(0x1000), keccak256("a"), 1e6);
        payouts[1] = Trees.Payout(address(0x2000), keccak256("b"), 2e6);
        payouts[2] = Trees.Payout(address(0x3000), keccak256("c"), 7e6);
        (bytes32 root, uint96 sum) = Trees.settlementRoot(payouts);
        Settlement.Statement[] memory statements = one(statement(header, 1, 10e6));
        vm.prank(proposer);
        settlement.propose(1, root, sum, statements);
        later(5);
        settlement.finalize();
        (sides, path) = Trees.settlementPath(payouts, 1);
    }

    function _redeploy(uint64[] memory values) private {
        demo = values;
        deploy(token);
        vm.prank(poster);
        token.approve(address(escrow), type(uint256).max);
        (header, job) = openJob(100e6);
    }

    function _expectPropose(bytes4 selector, uint48 epoch, uint96 sum, Settlement.Statement[] memory statements)
        private
    {
        vm.prank(proposer);
        vm.expectPartialRevert(selector);
        settlement.propose(epoch, keccak256("root"), sum, statements);
    }

    function _announce(uint48 epoch) private {
        vm.prank(disputes);
        settlement.announceRejection(epoch, keccak256("reason"));
    }

    function _expectAnnounce(uint48 epoch) private {
        vm.prank(disputes);
        vm.expectPartialRevert(EpochWindow.NotInWindow.selector);
        settlement.announceRejection(epoch, 0);
    }

    function _expectReject(uint48 epoch) private {
        bytes32[] memory jobs = _jobs();
        vm.prank(disputes);
        vm.expectPartialRevert(EpochWindow.NotExecutable.selector);
        settlement.rejectDebits(epoch, jobs);
    }

    function _jobs() private view returns (bytes32[] memory jobs) {
        jobs = new bytes32[](1);
        jobs[0] = job;
    }
}
