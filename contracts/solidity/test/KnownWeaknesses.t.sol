// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {JobClosing} from "../src/JobClosing.sol";
import {Messages} from "../src/Messages.sol";
import {Parameters} from "../src/Parameters.sol";
import {Settlement} from "../src/Settlement.sol";
import {Deployed} from "./Deployed.sol";
import {Trees} from "./Trees.sol";

/// @dev What each key can take that it should not be able to. Every test here succeeds as an attack
/// and must fail, and be turned round, when the contracts change. The documents state the same.
contract KnownWeaknessesTest is Deployed {
    address internal thief = address(0x7EF);

    /// @dev The newest final root alone is paid, and its leaves are the proposer's word.
    function test_Known_proposer_alone__takes_unclaimed_pay_of_all_epochs() public {
        uint96 total;
        for (uint48 epoch = 1; epoch <= 4; ++epoch) {
            (Messages.JobHeader memory header,) = openJob(CAP);
            Settlement.Statement[] memory statements = one(statement(header, 1, CAP));
            total += CAP;
            (bytes32 honest, uint96 sum) = Trees.settlementRoot(onePayout(provider, total));
            vm.prank(proposer);
            settlement.propose(epoch, honest, sum, statements);
            later(20);
            settlement.finalize();
        }
        Trees.Payout[] memory stolen = onePayout(thief, total);
        (bytes32 root, uint96 all) = Trees.settlementRoot(stolen);

        vm.prank(proposer);
        settlement.propose(5, root, all, new Settlement.Statement[](0));
        later(20);
        settlement.finalize();
        claim(stolen, 0);

        assertEq(token.balanceOf(thief), 4 * uint256(CAP), "four epochs of pay");
        vm.expectRevert();
        claim(onePayout(provider, total), 0);
    }

    /// @dev With one coordinator's key a job's escrow goes cap by cap, without any work.
    function test_Known_proposer_and_coordinator__drain_escrow_cap_by_cap() public {
        (Messages.JobHeader memory header,) = openJob(3 * CAP);
        uint256 began = vm.getBlockTimestamp();
        Trees.Payout[] memory stolen;
        for (uint48 epoch = 1; epoch <= 3; ++epoch) {
            stolen = post(epoch, header, CAP * epoch, thief, CAP * epoch);
            later(5);
        }
        settlement.finalize();
        claim(stolen, 0);

        assertEq(token.balanceOf(thief), 3 * uint256(CAP), "all of the escrow");
        assertTrue(vm.getBlockTimestamp() - began <= 20, "within one nominal epoch");
    }

    /// @dev The victim is in no job; bounty and restitution go where the slasher says.
    function test_Known_slasher_alone__takes_half_of_anybodys_stake() public {
        (, bytes32 own) = openJob(1e6);
        _stake(100e6);
        vm.prank(slasher);
        uint256 id = stakes.announceSlash(provider, own, 100e6, 30e6, thief, 20e6, bytes32(0));
        later(5);
        vm.prank(slasher);
        stakes.executeSlash(id);

        assertEq(token.balanceOf(thief), 20e6, "bounty");
        (uint96 deposited,) = escrow.fundsOf(own);
        assertEq(deposited, 31e6, "restitution to a job of his own");
        assertEq(stakes.accountOf(provider).active, 0, "the rest is burned");
    }

    /// @dev Caps hold for a case. Two cases that are open together take everything.
    function test_Known_slash_cap__holds_for_a_case_and_not_for_an_account() public {
        uint64[] memory values = demoValues();
        values[10] = 5_000; // half of a stake
        demo = values;
        deploy(token);
        address[3] memory owners = [poster, provider, coordinator];
        for (uint256 i = 0; i < owners.length; ++i) {
            give(owners[i], 1e6);
        }
        (, bytes32 own) = openJob(1e6);
        _stake(100e6);
        vm.startPrank(slasher);
        uint256 first = stakes.announceSlash(provider, own, 50e6, 0, thief, 0, bytes32(0));
        uint256 second = stakes.announceSlash(provider, own, 50e6, 0, thief, 0, bytes32(0));
        later(5);
        stakes.executeSlash(first);
        stakes.executeSlash(second);
        vm.stopPrank();

        assertEq(stakes.accountOf(provider).active, 0, "all of it, by halves");
    }

    /// @dev A case that ran out, and the stake that finished unbonding behind it, in one block.
    function test_Known_unbonding__is_shorter_than_announcement_and_execution() public {
        (, bytes32 own) = openJob(1e6);
        _stake(100e6);
        vm.prank(provider);
        stakes.requestUnbond(100e6);
        vm.prank(slasher);
        uint256 id = stakes.announceSlash(provider, own, 100e6, 0, thief, 0, bytes32(0));
        later(65);
        uint256 before = token.balanceOf(provider);
        vm.startPrank(provider);
        stakes.dropSlash(id);
        stakes.withdraw();
        vm.stopPrank();

        assertEq(token.balanceOf(provider) - before, 100e6, "out of reach");
    }

    /// @dev Announced again in the block in which it runs out, for ever; no reason is asked for.
    function test_Known_slasher_alone__freezes_a_stake_for_nothing() public {
        (, bytes32 own) = openJob(1e6);
        _stake(100e6);
        vm.prank(provider);
        stakes.requestUnbond(100e6);
        for (uint256 i = 0; i < 10; ++i) {
            vm.prank(slasher);
            stakes.announceSlash(provider, own, 1, 0, thief, 0, bytes32(0));
            later(64);
        }
        vm.prank(provider);
        vm.expectRevert();
        stakes.withdraw();
    }

    /// @dev A deadline has no upper bound, and only the poster closes a job without seals before it.
    function test_Known_poster_alone__holds_reserved_stake_for_decades() public {
        Messages.JobHeader memory header = newHeader();
        header.deadline = uint64(vm.getBlockTimestamp() + 30 * 365 days);
        vm.prank(poster);
        escrow.open(header, 1);
        bytes32 job = idOf(header);
        _stake(100e6);
        Messages.LeaseAccept memory accept = lease(job, provider, 100e6, bytes32(uint256(1)));
        stakes.reserve(accept, sign(hashes.lease(accept), PROVIDER_KEY));

        later(29 * 365 days);
        vm.startPrank(provider);
        vm.expectRevert();
        escrow.requestCloseUnsealed(header);
        vm.expectRevert();
        stakes.releaseReservation(job, provider);
        vm.expectRevert();
        stakes.requestUnbond(1);
        vm.stopPrank();
    }

    /// @dev Whoever holds the disputes key can refuse every epoch: no pay is ever final.
    function test_Known_disputes_alone__rejects_every_epoch() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(CAP);
        bytes32[] memory jobs = new bytes32[](1);
        jobs[0] = job;
        for (uint48 epoch = 1; epoch <= 3; ++epoch) {
            post(epoch, header, 10e6, provider, 10e6);
            vm.prank(disputes);
            settlement.announceRejection(epoch, bytes32(0));
            later(5);
            vm.prank(disputes);
            settlement.rejectDebits(epoch, jobs);
            (, uint96 debited) = escrow.fundsOf(job);
            assertEq(debited, 0, "nothing is paid");
            later(60);
        }
        (uint96 funded,) = settlement.totals();
        assertEq(funded, 0, "no epoch is ever final");
    }

    /// @dev Roles are immutable: without the proposer what was earned is neither paid nor refunded.
    function test_Known_lost_proposer__locks_earned_pay() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        Messages.Seal memory seal = lastSeal(job, 9, 30e6);
        escrow.requestClose(header, seal, signSeal(seal), noLeaf());
        later(50);
        escrow.refund(job);
        later(10 * 365 days);

        vm.expectRevert();
        escrow.refund(job);
        assertEq(escrow.remaining(job), 30e6, "nobody can move it");
    }

    /// @dev Anybody may start to close an open job by its newest seal; a closing job takes no lease.
    function test_Known_stranger__closes_a_paused_job() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        Messages.Seal memory seal = sealOf(job, 3, 10e6, 10e6);
        bytes memory signature = signSeal(seal);
        vm.prank(stranger);
        escrow.requestClose(header, seal, signature, noLeaf());
        _stake(1e6);
        Messages.LeaseAccept memory accept = lease(job, provider, 1e6, bytes32(uint256(1)));
        signature = sign(hashes.lease(accept), PROVIDER_KEY);
        vm.expectRevert();
        stakes.reserve(accept, signature);
        later(120);
        assertTrue(escrow.stateOf(job) == JobClosing.JobState.Closed, "for not having sealed for a minute");
    }

    /// @dev A last seal of nothing that nobody answers gives the poster back all that was not debited.
    function test_Known_coordinator__last_seal_of_nothing_refunds_earned_pay() public {
        (Messages.JobHeader memory header, bytes32 job) = openJob(100e6);
        Messages.Seal memory seal = lastSeal(job, 9, 0); // the work of eight steps is forgotten
        escrow.requestClose(header, seal, signSeal(seal), noLeaf());
        later(50);
        uint256 before = token.balanceOf(poster);
        escrow.refund(job);

        assertEq(token.balanceOf(poster) - before, 100e6, "all of it");
    }

    /// @dev The numbers that give others time to look have bounds of seconds.
    function test_Known_admin__takes_notice_and_windows_to_seconds_and_the_cap_to_a_token() public {
        Parameters.Key[6] memory keys = [
            Parameters.Key.MinEpochLength,
            Parameters.Key.EpochLength,
            Parameters.Key.NoticePeriod,
            Parameters.Key.ChallengeWindow,
            Parameters.Key.AnnouncementWindow,
            Parameters.Key.MaxEpochCap
        ];
        uint64[6] memory lowest = [uint64(1), 1, 1, 2, 2, 1e6];
        for (uint256 i = 0; i < keys.length; ++i) {
            vm.prank(admin);
            parameters.schedule(keys[i], lowest[i]);
        }
        later(365 days); // an announced change never lapses
        for (uint256 i = 0; i < keys.length; ++i) {
            parameters.enact(keys[i]);
            assertEq(parameters.value(keys[i]), lowest[i], "the lowest bound");
        }
    }

    function _stake(uint96 amount) private {
        vm.prank(provider);
        stakes.stake(amount);
    }
}
