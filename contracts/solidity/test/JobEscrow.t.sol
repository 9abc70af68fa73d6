// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {PayTree} from "../src/PayTree.sol";
import {TestToken} from "../src/TestToken.sol";
import {Deployed} from "./Deployed.sol";

/// @dev The rules of `JobEscrow`, and the attacks that each of them stops.
contract JobEscrowTest is Deployed {
    JobEscrow.JobHeader internal header;
    bytes32 internal job;

    function setUp() public override {
        super.setUp();
        (header, job) = openJob(100e6, 40e6, 3600e6); // a token a second flows into the bucket
    }

    // ---- opening ----

    function test_open__signed_header__anyone_may_send_it_once() public {
        JobEscrow.JobHeader memory it = newHeader(7e6, 1, 1);
        bytes memory signature = sign(idOf(it), POSTER);

        vm.prank(stranger);
        bytes32 id = escrow.open(it, signature);

        assertEq(id, idOf(it), "id");
        (uint80 funded,,, bool opened) = escrow.jobs(id);
        assertTrue(opened && funded == 7e6, "funded");
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.JobExists.selector, id));
        escrow.open(it, signature);
    }

    function test_open__signature_of_another__is_refused() public {
        JobEscrow.JobHeader memory it = newHeader(7e6, 1, 1);
        bytes memory signature = sign(idOf(it), STRANGER);

        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, stranger, poster));
        escrow.open(it, signature);
    }

    function test_open__signed_for_long__waits_for_its_margin_or_the_poster() public {
        JobEscrow.JobHeader memory it = newHeader(7e6, 1, 1);
        ++it.openBy;
        bytes memory signature = sign(idOf(it), POSTER);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotInTime.selector, it.openBy));
        escrow.open(it, signature);
        later(1);
        escrow.open(it, signature);
    }

    function test_open__after_its_time__is_refused() public {
        JobEscrow.JobHeader memory it = newHeader(7e6, 1, 1);
        later(MARGIN + 1);

        vm.prank(poster);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotInTime.selector, it.openBy));
        escrow.open(it, "");
    }

    function test_open__permit_in_the_same_call__needs_no_allowance() public {
        uint256 key = 0xBEEF;
        address newcomer = vm.addr(key);
        vm.prank(minter);
        TestToken(address(token)).faucet(newcomer, 9e6);
        JobEscrow.JobHeader memory it = newHeader(9e6, 1, 1);
        it.poster = newcomer;
        bytes[] memory calls = new bytes[](2);
        calls[0] = _permitCall(key, 9e6);
        calls[1] = abi.encodeCall(escrow.open, (it, sign(idOf(it), key)));

        vm.prank(stranger);
        escrow.multicall(calls);

        assertEq(token.balanceOf(newcomer), 0, "paid");
    }

    function test_permit__used_before__is_ignored() public {
        uint256 key = 0xBEEF;
        bytes[] memory calls = new bytes[](1);
        calls[0] = _permitCall(key, 9e6);

        escrow.multicall(calls);
        escrow.multicall(calls);

        assertEq(token.allowance(vm.addr(key), address(escrow)), 9e6, "allowance");
    }

    function test_topUp__job_that_nobody_opened_or_closed__is_refused() public {
        vm.startPrank(poster);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.UnknownJob.selector, bytes32("none")));
        escrow.topUp(bytes32("none"), 1);
        escrow.topUp(job, 5e6);
        escrow.close(header, 0, "");
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.JobIsClosed.selector, job));
        escrow.topUp(job, 1);
        vm.stopPrank();
    }

    // ---- limits ----

    function test_grant__above_burst_or_budget__is_skipped_and_the_next_is_taken() public {
        uint256[] memory limits = new uint256[](3);
        limits[0] = asking(worker, 30e6)[0];
        limits[1] = asking(friend, 10e6 + 1)[0];
        limits[2] = asking(stranger, 10e6)[0];

        grant(header, limits);

        assertEq(limitOf(job, worker), 30e6, "worker");
        assertEq(limitOf(job, friend), 0, "friend");
        assertEq(limitOf(job, stranger), 10e6, "stranger");
        assertEq(committed(job), 40e6, "committed");
    }

    function test_grant__bucket__refills_by_the_hour_up_to_burst() public {
        grant(header, asking(worker, 40e6));
        grant(header, asking(worker, 41e6));
        assertEq(limitOf(job, worker), 40e6, "empty");
        later(10);
        grant(header, asking(worker, 50e6 + 1));
        assertEq(limitOf(job, worker), 40e6, "ten seconds are ten tokens");
        grant(header, asking(worker, 50e6));
        assertEq(limitOf(job, worker), 50e6, "ten tokens");
        later(30 days);
        grant(header, asking(worker, 90e6 + 1));
        assertEq(limitOf(job, worker), 50e6, "no more than burst, however long it idled");
        grant(header, asking(worker, 90e6));
        assertEq(limitOf(job, worker), 90e6, "burst");
    }

    function test_grant__budget__bounds_all_limits() public {
        grant(header, asking(worker, 40e6));
        later(1 hours);
        grant(header, asking(friend, 40e6));
        later(1 hours);
        grant(header, asking(stranger, 20e6 + 1));
        assertEq(committed(job), 80e6, "not above the budget");
        grant(header, asking(stranger, 20e6));
        assertEq(committed(job), 100e6, "the budget");
    }

    function test_grant__lower_or_same_limit__changes_nothing() public {
        grant(header, asking(worker, 40e6));
        later(10);
        grant(header, asking(worker, 40e6));
        grant(header, asking(worker, 1));
        assertEq(limitOf(job, worker), 40e6, "limit");
        grant(header, asking(worker, 50e6)); // what flowed in was not spent by the replay
        assertEq(limitOf(job, worker), 50e6, "allowance");
    }

    function test_grant__replayed_after_a_quit__raises_nothing() public {
        uint40 by = soon();
        bytes memory signature = sign(grantHash(job, asking(worker, 40e6), by), COORDINATOR);
        escrow.grant(header, asking(worker, 40e6), by, signature);
        quit(job, WORKER, 0);
        later(50);

        escrow.grant(header, asking(worker, 40e6), by, signature);

        assertEq(limitOf(job, worker), 0, "an account that ended is granted nothing");
        grant(header, asking(friend, 40e6));
        assertEq(limitOf(job, friend), 40e6, "the bucket is full");
    }

    function test_grant__replays__do_not_stop_the_refill_by_rounding() public {
        (JobEscrow.JobHeader memory slow, bytes32 id) = openJob(100e6, 10, 1); // a base unit an hour
        grant(slow, asking(worker, 10));
        for (uint256 i = 0; i < 70; ++i) {
            later(1 minutes);
            grant(slow, asking(worker, 10));
        }

        grant(slow, asking(worker, 11));

        assertEq(limitOf(id, worker), 11, "an hour is a unit");
    }

    function test_grant__poster_or_stranger_signs__is_refused() public {
        uint40 by = soon();
        bytes memory signature = sign(grantHash(job, asking(worker, 1), by), POSTER);
        vm.prank(poster);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, poster, coordinator));
        escrow.grant(header, asking(worker, 1), by, signature);
        vm.prank(coordinator); // its transaction is not its signature
        vm.expectRevert(abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureLength.selector, 0));
        escrow.grant(header, asking(worker, 1), by, "");
    }

    function test_grant__time_of_the_signature__is_bounded_on_both_sides() public {
        uint40 by = soon() + 1;
        bytes memory signature = sign(grantHash(job, asking(worker, 1), by), COORDINATOR);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotInTime.selector, by));
        escrow.grant(header, asking(worker, 1), by, signature);
        later(1);
        escrow.grant(header, asking(worker, 1), by, signature);
        later(MARGIN + 1);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotInTime.selector, by));
        escrow.grant(header, asking(worker, 1), by, signature);
    }

    function test_grant__header_with_other_numbers__is_another_job() public {
        JobEscrow.JobHeader memory changed = header;
        changed.burst = 90e6;
        uint40 by = soon();
        bytes memory signature = sign(grantHash(idOf(changed), asking(worker, 90e6), by), COORDINATOR);

        vm.expectRevert(abi.encodeWithSelector(JobEscrow.UnknownJob.selector, idOf(changed)));
        escrow.grant(changed, asking(worker, 90e6), by, signature);
    }

    // ---- claims ----

    function test_claim__any_seal__pays_what_vested_up_to_the_limit_once() public {
        grant(header, asking(worker, 30e6));

        pay(header, worker, 12e6, 10e6);
        assertEq(free(worker), 10e6, "vested");
        pay(header, worker, 12e6, 10e6);
        pay(header, worker, 8e6, 8e6); // an older seal
        assertEq(free(worker), 10e6, "again, and an older one");
        pay(header, worker, 90e6, 90e6);
        assertEq(free(worker), 30e6, "no more than the limit");
        later(50);
        grant(header, asking(worker, 60e6));
        pay(header, worker, 90e6, 90e6);
        assertEq(free(worker), 60e6, "the same seal pays more once the limit is raised");
    }

    function test_claim__friend_without_a_limit__gets_nothing() public {
        grant(header, asking(worker, 30e6));

        pay(header, friend, 90e6, 90e6);

        assertEq(free(friend), 0, "friend");
        assertEq(committed(job), 30e6, "the worker's part is untouched");
    }

    function test_claim__seal_of_a_stranger_or_of_another_job__is_refused() public {
        grant(header, asking(worker, 30e6));
        Leaf[] memory leaves = one(worker, 9e6, 9e6);
        (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), 0, 0);
        bytes memory forged = sign(sealHash(job, root), STRANGER);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, stranger, coordinator));
        escrow.claim(header, DETAILS, forged, worker, 9e6, 9e6, sides, path);

        bytes memory foreign = sign(sealHash(keccak256("another job"), root), COORDINATOR);
        vm.expectPartialRevert(JobEscrow.WrongSigner.selector);
        escrow.claim(header, DETAILS, foreign, worker, 9e6, 9e6, sides, path);
    }

    function test_claim__wrong_path_amount_or_account__is_refused() public {
        grant(header, asking(worker, 30e6));
        Leaf[] memory leaves = _leaves(5);
        (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), 2, 0);
        bytes memory signature = sign(sealHash(job, root), COORDINATOR);
        Leaf memory it = leaves[2];

        escrow.claim(header, DETAILS, signature, it.account, it.earned, it.vested, sides, path);
        vm.expectPartialRevert(JobEscrow.WrongSigner.selector);
        escrow.claim(header, DETAILS, signature, it.account, it.earned, it.vested + 1, sides, path);
        vm.expectPartialRevert(JobEscrow.WrongSigner.selector);
        escrow.claim(header, DETAILS, signature, worker, it.earned, it.vested, sides, path);
        vm.expectPartialRevert(JobEscrow.WrongSigner.selector);
        escrow.claim(header, DETAILS, signature, it.account, it.earned, it.vested, sides ^ 1, path);
        vm.expectPartialRevert(JobEscrow.WrongSigner.selector);
        escrow.claim(header, keccak256("other"), signature, it.account, it.earned, it.vested, sides, path);
    }

    /// @dev A node shown as a leaf: 40 bytes of two hashes' 64 never hash to the same.
    function test_claimAll__subtrees_of_any_tree__equal_single_claims(uint256 size, uint256 height) public {
        size = bound(size, 1, 40);
        height = bound(height, 0, 6);
        Leaf[] memory leaves = _leaves(size);
        for (uint256 i = 0; i < size; ++i) {
            grant(header, asking(leaves[i].account, 1e6 / (i + 1)));
        }
        for (uint256 from = 0; from < size; from += 1 << height) {
            uint256 to = from + (1 << height) < size ? from + (1 << height) : size;
            (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), from, height);
            bytes memory signature = sign(sealHash(job, root), COORDINATOR);
            escrow.claimAll(header, DETAILS, signature, packed(leaves, from, to), sides, path);
        }
        for (uint256 i = 0; i < size; ++i) {
            uint96 paid = free(leaves[i].account);
            claim(header, leaves, i, COORDINATOR);
            assertEq(free(leaves[i].account), paid, "nothing is left to claim");
            uint256 most = 1e6 / (i + 1);
            assertEq(paid, leaves[i].vested < most ? leaves[i].vested : most, "paid");
        }
    }

    function test_claimAll__leaf_that_vests_more_than_it_earned__does_not_stop_the_others() public {
        Leaf[] memory leaves = new Leaf[](2);
        leaves[0] = Leaf(friend, 1e6, type(uint80).max);
        leaves[1] = Leaf(worker, 5e6, 5e6);
        grant(header, asking(worker, 5e6));
        grant(header, asking(friend, 3e6));
        (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), 0, 1);

        escrow.claimAll(header, DETAILS, sign(sealHash(job, root), COORDINATOR), packed(leaves, 0, 2), sides, path);

        assertEq(free(worker), 5e6, "worker");
        assertEq(free(friend), 3e6, "friend, up to its own limit");
    }

    function test_claimAll__no_leaf_or_a_part_of_one__is_refused() public {
        bytes32[] memory path;
        vm.expectRevert(abi.encodeWithSelector(PayTree.MalformedLeaves.selector, 0));
        escrow.claimAll(header, DETAILS, "", "", 0, path);
        vm.expectRevert(abi.encodeWithSelector(PayTree.MalformedLeaves.selector, 41));
        escrow.claimAll(header, DETAILS, "", new bytes(41), 0, path);
    }

    function test_claim__after_a_close_and_for_years__pays() public {
        grant(header, asking(worker, 30e6));
        close(header);
        later(1000 days);

        pay(header, worker, 12e6, 10e6);

        assertEq(free(worker), 10e6, "worker");
    }

    // ---- quitting, ending, closing, releasing ----

    function test_quit__gives_back_what_is_neither_kept_nor_earned() public {
        grant(header, asking(worker, 30e6));
        pay(header, worker, 12e6, 10e6);

        quit(job, WORKER, 0);

        assertEq(limitOf(job, worker), 12e6, "what a seal says was earned stays");
        assertEq(committed(job), 12e6, "committed");
        assertEq(escrow.endOf(job, worker), vm.getBlockTimestamp(), "ended");
        pay(header, worker, 12e6, 12e6);
        assertEq(free(worker), 12e6, "and vests");
    }

    /// @dev Whoever rebuilds limits from events has to see these.
    function test_events__limit_that_falls_and_earned_that_rises__are_told() public {
        grant(header, asking(worker, 30e6));
        vm.expectEmit();
        emit JobEscrow.Claimed(job, worker, 0, 12e6);
        pay(header, worker, 12e6, 0);
        end(header, worker);
        vm.expectEmit();
        emit JobEscrow.LimitSet(job, worker, 12e6);
        quit(job, WORKER, 0);
    }

    function test_quit__keep__never_raises_a_limit() public {
        grant(header, asking(worker, 30e6));

        quit(job, WORKER, type(uint80).max);

        assertEq(limitOf(job, worker), 30e6, "limit");
    }

    function test_quit__signed_by_the_coordinator__is_refused() public {
        grant(header, asking(worker, 30e6));
        uint40 by = soon();
        bytes memory signature = sign(quitHash(job, worker, 0, by), COORDINATOR);

        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, coordinator, worker));
        escrow.quit(job, worker, 0, by, signature);
    }

    function test_end__takes_no_pay__and_frees_the_rest_after_the_tail() public {
        fund(worker, 5e6);
        bond(job, WORKER, 5e6);
        grant(header, asking(worker, 30e6));
        end(header, worker);
        later(TAIL - 1);
        release(job, worker);
        assertEq(stakeOf(job, worker), 5e6, "too early");
        pay(header, worker, 12e6, 10e6);
        later(1);

        release(job, worker);

        assertEq(free(worker), 15e6, "pay and stake");
        assertEq(limitOf(job, worker), 12e6, "limit");
        assertEq(committed(job), 12e6, "committed");
        pay(header, worker, 30e6, 30e6);
        assertEq(free(worker), 17e6, "what nobody showed in time is lost beyond what was shown as earned");
    }

    function test_release__job_goes_on__account_may_come_back() public {
        fund(worker, 5e6);
        bond(job, WORKER, 5e6);
        end(header, worker);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.CannotBond.selector, job, worker, 6e6));
        this.bondOf(job, WORKER, 6e6);
        later(TAIL);
        release(job, worker);

        bond(job, WORKER, 4e6);
        grant(header, asking(worker, 10e6));

        assertEq(stakeOf(job, worker), 4e6, "stake");
        assertEq(limitOf(job, worker), 10e6, "limit");
    }

    function test_release__never_ended_or_twice__frees_nothing() public {
        fund(worker, 5e6);
        bond(job, WORKER, 5e6);
        later(1000 days);
        release(job, worker);
        assertEq(stakeOf(job, worker), 5e6, "it goes on");
        close(header);
        later(TAIL);
        release(job, worker);
        release(job, worker);
        assertEq(free(worker), 5e6, "once");
    }

    function test_close__earlier_than_an_end__decides() public {
        fund(worker, 5e6);
        bond(job, WORKER, 5e6);
        close(header);
        uint256 closedAt = vm.getBlockTimestamp();
        later(TAIL - 1);
        end(header, worker); // a late end does not hold the stake back
        assertEq(escrow.endOf(job, worker), closedAt, "end");
        later(1);
        release(job, worker);
        assertEq(free(worker), 5e6, "stake");
        close(header);
        (,, uint40 again,) = escrow.jobs(job);
        assertEq(again, closedAt, "a second close moves nothing");
    }

    function test_close__by_a_stranger__is_refused() public {
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, stranger, poster));
        escrow.close(header, 0, "");
        uint40 by = soon();
        bytes memory signature = sign(closeHash(job, by), COORDINATOR);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, coordinator, poster));
        escrow.close(header, by, signature);
        escrow.close(header, by, sign(closeHash(job, by), POSTER));
    }

    function test_reclaim__only_what_is_not_committed__at_any_time() public {
        grant(header, asking(worker, 30e6));
        vm.startPrank(poster);
        escrow.reclaim(header, 70e6 - 1);
        escrow.reclaim(header, 70e6);
        escrow.reclaim(header, 70e6);
        vm.stopPrank();
        assertEq(free(poster), 70e6, "poster");
        pay(header, worker, 30e6, 30e6);
        assertEq(free(worker), 30e6, "the worker has its whole limit");
    }

    function test_reclaim__by_others__only_after_the_tail_and_for_the_poster() public {
        vm.startPrank(stranger);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, stranger, poster));
        escrow.reclaim(header, 1);
        vm.stopPrank();
        close(header);
        later(TAIL - 1);
        vm.startPrank(stranger);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongSigner.selector, stranger, poster));
        escrow.reclaim(header, 1);
        later(1);
        escrow.reclaim(header, 1); // in front of the poster, to no end
        vm.stopPrank();
        vm.prank(poster);
        escrow.reclaim(header, 100e6);
        assertEq(free(poster), 100e6, "poster");
    }

    /// @dev A seal that shows everything as earned locks unspent limits, and nobody gains by it.
    function test_reclaim__coordinator_shows_all_as_earned__poster_does_not_get_it() public {
        grant(header, asking(worker, 30e6));
        pay(header, worker, 90e6, 0);
        close(header);
        later(TAIL);
        release(job, worker);
        vm.startPrank(poster);
        escrow.reclaim(header, type(uint80).max);
        vm.stopPrank();
        assertEq(free(poster), 70e6, "poster");
    }

    // ---- stake ----

    function test_bond__without_the_money__is_refused() public {
        fund(worker, 5e6);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.CannotBond.selector, job, worker, 5e6 + 1));
        this.bondOf(job, WORKER, 5e6 + 1);
        bond(job, WORKER, 5e6);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.CannotBond.selector, job, worker, 5e6));
        this.bondOf(job, WORKER, 5e6); // a replay takes nothing twice
        assertEq(free(worker), 0, "free");
    }

    function test_bond__out_of_pay__needs_no_deposit() public {
        grant(header, asking(worker, 30e6));
        pay(header, worker, 9e6, 9e6);

        bond(job, WORKER, 9e6);

        assertEq(stakeOf(job, worker), 9e6, "stake");
    }

    function test_bondMany__late_or_poor_or_ended__does_not_stop_the_others() public {
        fund(worker, 5e6);
        fund(stranger, 5e6);
        uint40 by = soon();
        JobEscrow.SignedBond[] memory bonds = new JobEscrow.SignedBond[](4);
        bonds[0] = JobEscrow.SignedBond(friend, 5e6, by, sign(bondHash(job, friend, 5e6, by), FRIEND)); // poor
        bonds[1] = JobEscrow.SignedBond(worker, 5e6, by - MARGIN - 1, "late");
        bonds[2] = JobEscrow.SignedBond(stranger, 3e6, by, sign(bondHash(job, stranger, 3e6, by), STRANGER));
        bonds[3] = JobEscrow.SignedBond(worker, 4e6, by, sign(bondHash(job, worker, 4e6, by), WORKER));
        end(header, stranger);

        escrow.bondMany(job, bonds);

        assertEq(stakeOf(job, worker), 4e6, "worker");
        assertEq(stakeOf(job, stranger), 0, "ended");
        assertEq(stakeOf(job, friend), 0, "poor");
    }

    function test_bond__replayed_after_a_release__is_too_old() public {
        fund(worker, 5e6);
        uint40 by = soon();
        bytes memory signature = sign(bondHash(job, worker, 5e6, by), WORKER);
        escrow.bond(job, worker, 5e6, by, signature);
        quit(job, WORKER, 0);
        later(TAIL);
        release(job, worker);

        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotInTime.selector, by));
        escrow.bond(job, worker, 5e6, by, signature);
    }

    // ---- slashing ----

    function test_burn__announced__takes_the_stake_and_ends_the_account() public {
        _bonded(5e6);
        _announce(3e6);
        later(ANNOUNCE - 1);
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.burn(job, worker);
        later(1);
        vm.prank(slasher);
        escrow.burn(job, worker);
        assertEq(stakeOf(job, worker), 2e6, "stake");
        assertEq(free(escrow.BURN()), 3e6, "burned");
        assertEq(escrow.endOf(job, worker), vm.getBlockTimestamp(), "ended");
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.burn(job, worker);
        fund(worker, 5e6);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.CannotBond.selector, job, worker, 5e6));
        this.bondOf(job, WORKER, 5e6); // a held bond does not fill up what was burned
    }

    function test_burn__dropped_or_too_late__is_refused() public {
        _bonded(5e6);
        _announce(3e6);
        vm.prank(canceller);
        escrow.drop(job, worker);
        later(ANNOUNCE);
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.burn(job, worker);
        _announce(3e6);
        later(ANNOUNCE + EXECUTE);
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.burn(job, worker);
        _announce(4e6); // the one that ran out is overwritten
    }

    function test_announce__above_the_stake_or_twice_or_by_others__is_refused() public {
        _bonded(5e6);
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.announce(job, worker, 5e6 + 1, "");
        vm.prank(canceller);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotSlasher.selector, canceller));
        escrow.announce(job, worker, 1, "");
        _announce(3e6);
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.announce(job, worker, 1, "");
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.NotSlasher.selector, stranger));
        escrow.drop(job, worker);
    }

    function test_announce__ended__until_an_execution_would_pass_the_release() public {
        _bonded(5e6);
        quit(job, WORKER, 0); // quitting does not save the stake
        later(TAIL - ANNOUNCE - EXECUTE - 1);
        _announce(5e6);
        later(ANNOUNCE + EXECUTE);
        _expectCannotSlash();
        vm.prank(slasher);
        escrow.announce(job, worker, 5e6, "");
        later(1);
        release(job, worker);
        assertEq(free(worker), 5e6, "free");
    }

    // ---- leaving ----

    function test_withdraw__own_call__to_any_address() public {
        fund(worker, 5e6);
        vm.prank(worker);
        escrow.withdraw(friend, 5e6);
        assertEq(token.balanceOf(friend), 1_000_005e6, "friend");
        vm.prank(worker);
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.InsufficientBalance.selector, worker, 0, 1));
        escrow.withdraw(friend, 1);
    }

    function test_withdrawFor__signed__pays_the_account_and_a_fee_once() public {
        fund(worker, 10e6);
        uint40 by = soon();
        bytes memory signature = sign(withdrawHash(worker, 5e6, 1e6, 0, by), WORKER);

        vm.prank(stranger);
        escrow.withdrawFor(worker, 5e6, 1e6, 0, by, signature);

        assertEq(token.balanceOf(worker), 1_000_004e6, "worker");
        assertEq(free(worker), 5e6, "left");
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.WrongNonce.selector, 0, 1));
        escrow.withdrawFor(worker, 5e6, 1e6, 0, by, signature);
        vm.expectPartialRevert(JobEscrow.WrongSigner.selector);
        escrow.withdrawFor(worker, 5e6, 2e6, 1, by, signature);
    }

    function test_signature__malleable_or_of_nobody__is_refused() public {
        uint40 by = soon();
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(
            WORKER, keccak256(abi.encodePacked(hex"1901", domainSeparator(), quitHash(job, worker, 0, by)))
        );
        bytes32 high = bytes32(0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141 - uint256(s));
        vm.expectRevert(abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureS.selector, high));
        escrow.quit(job, worker, 0, by, abi.encodePacked(r, high, v == 27 ? uint8(28) : uint8(27)));
        vm.expectRevert(ECDSA.ECDSAInvalidSignature.selector);
        escrow.quit(job, address(0), 0, by, abi.encodePacked(r, s, uint8(29)));
    }

    function test_constructor__times_that_let_stake_out_too_early__are_refused() public {
        uint40[4] memory times = [MARGIN, ANNOUNCE, EXECUTE, MARGIN + ANNOUNCE + EXECUTE];
        vm.expectRevert(JobEscrow.TimesTooShort.selector);
        this.deployWith(times);
        ++times[3];
        this.deployWith(times);
        times[2] = 0;
        vm.expectRevert(JobEscrow.TimesTooShort.selector);
        this.deployWith(times);
    }

    function deployWith(uint40[4] calldata times) external {
        create("JobEscrow", abi.encode(token, slasher, canceller, times));
    }

    function bondOf(bytes32 id, uint256 key, uint80 stake) external {
        bond(id, key, stake);
    }

    function _bonded(uint80 stake) private {
        fund(worker, stake);
        bond(job, WORKER, stake);
    }

    function _announce(uint80 amount) private {
        vm.prank(slasher);
        escrow.announce(job, worker, amount, keccak256("evidence"));
    }

    function _expectCannotSlash() private {
        vm.expectRevert(abi.encodeWithSelector(JobEscrow.CannotSlash.selector, job, worker));
    }

    function _leaves(uint256 size) private pure returns (Leaf[] memory leaves) {
        leaves = new Leaf[](size);
        for (uint80 i = 0; i < size; ++i) {
            leaves[i] = Leaf(vm.addr(1000 + i), 50_000 * (i + 1), 30_000 * (i + 1));
        }
    }

    function _permitCall(uint256 key, uint256 value) private view returns (bytes memory) {
        uint256 deadline = vm.getBlockTimestamp() + 1 hours;
        bytes32 typehash =
            keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
        bytes32 structHash = keccak256(abi.encode(typehash, vm.addr(key), address(escrow), value, 0, deadline));
        bytes32 separator = TestToken(address(token)).DOMAIN_SEPARATOR();
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, keccak256(abi.encodePacked(hex"1901", separator, structHash)));
        return abi.encodeCall(escrow.permit, (vm.addr(key), value, deadline, v, r, s));
    }
}
