// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {JobClosing} from "../src/JobClosing.sol";
import {Messages} from "../src/Messages.sol";
import {SignedMessages} from "../src/SignedMessages.sol";
import {StakeAccounts} from "../src/StakeAccounts.sol";
import {StakeRegistry} from "../src/StakeRegistry.sol";
import {TokenHolder} from "../src/TokenHolder.sol";
import {Deployed} from "./Deployed.sol";

contract StakeRegistryTest is Deployed {
    Messages.JobHeader internal header;
    bytes32 internal job;

    function setUp() public override {
        super.setUp();
        (header, job) = openJob(100e6);
        _stake(100e6);
    }

    // --- staking and unbonding

    function test_stake__adds_to_account_and_total() public {
        _stake(5e6);
        assertEq(stakes.accountOf(provider).active, 105e6, "active");
        assertEq(stakes.totalStaked(), 105e6, "total");
        assertEq(token.balanceOf(address(stakes)), 105e6, "tokens");
    }

    function test_stake__zero_or_unpaid__reverts() public {
        vm.prank(provider);
        vm.expectPartialRevert(TokenHolder.ZeroAmount.selector);
        stakes.stake(0);
        vm.prank(address(0xFACE));
        vm.expectRevert();
        stakes.stake(1);
    }

    function test_stake_with_permit__bad_permit__allowance_decides() public {
        vm.prank(provider);
        stakes.stakeWithPermit(7e6, noPermit());
        assertEq(stakes.accountOf(provider).active, 107e6, "active");
    }

    function test_unbond__after_delay__comes_back() public {
        vm.startPrank(provider);
        stakes.requestUnbond(40e6);
        assertEq(stakes.totalStaked(), 60e6, "total");
        later(59);
        vm.expectPartialRevert(StakeAccounts.StillUnbonding.selector);
        stakes.withdraw();
        later(1);
        uint256 before = token.balanceOf(provider);
        stakes.withdraw();
        assertEq(token.balanceOf(provider) - before, 40e6, "paid back");
        vm.expectPartialRevert(TokenHolder.ZeroAmount.selector);
        stakes.withdraw();
        vm.stopPrank();
    }

    function test_unbond__asked_twice__all_waits_anew() public {
        vm.startPrank(provider);
        stakes.requestUnbond(40e6);
        later(59);
        stakes.requestUnbond(1e6);
        later(1);
        vm.expectPartialRevert(StakeAccounts.StillUnbonding.selector);
        stakes.withdraw();
        vm.stopPrank();
    }

    function test_unbond__more_than_free__reverts() public {
        _reserve(30e6, 1);
        vm.startPrank(provider);
        vm.expectPartialRevert(StakeAccounts.NotEnoughFree.selector);
        stakes.requestUnbond(70e6 + 1);
        vm.expectPartialRevert(TokenHolder.ZeroAmount.selector);
        stakes.requestUnbond(0);
        stakes.requestUnbond(70e6);
        vm.stopPrank();
    }

    // --- reservations

    function test_reserve__signed_lease__relayed_by_anyone() public {
        _reserve(30e6, 1);
        _reserve(10e6, 2);
        assertEq(stakes.reservation(job, provider), 40e6, "of two leases");
        assertEq(stakes.accountOf(provider).reserved, 40e6, "reserved");
        assertEq(stakes.totalStaked(), 100e6, "still staked");
    }

    function test_reserve__replayed__reverts() public {
        _reserve(30e6, 1);
        _expectReserve(StakeAccounts.AlreadyReserved.selector, _lease(30e6, 1), PROVIDER_KEY);
    }

    function test_reserve__foreign_signature__reverts() public {
        _expectReserve(SignedMessages.WrongSigner.selector, _lease(30e6, 1), STRANGER_KEY);
    }

    function test_reserve__more_than_free_or_nothing__reverts() public {
        _expectReserve(StakeAccounts.NotEnoughFree.selector, _lease(100e6 + 1, 1), PROVIDER_KEY);
        _expectReserve(TokenHolder.ZeroAmount.selector, _lease(0, 1), PROVIDER_KEY);
    }

    function test_reserve__job_not_open__reverts() public {
        Messages.LeaseAccept memory unknown = lease(keccak256("no job"), provider, 1e6, keccak256("s"));
        _expectReserve(StakeAccounts.JobNotOpen.selector, unknown, PROVIDER_KEY);
        _close();
        _expectReserve(StakeAccounts.JobNotOpen.selector, _lease(1e6, 1), PROVIDER_KEY);
    }

    function test_release__after_refund_delay__frees() public {
        _reserve(30e6, 1);
        vm.expectPartialRevert(StakeAccounts.JobNotOver.selector);
        stakes.releaseReservation(job, provider);
        _close();
        later(39);
        vm.expectPartialRevert(StakeAccounts.JobNotOver.selector);
        stakes.releaseReservation(job, provider);
        later(1);
        vm.prank(stranger);
        stakes.releaseReservation(job, provider);
        assertEq(stakes.accountOf(provider).reserved, 0, "free");
        vm.expectPartialRevert(StakeAccounts.NothingReserved.selector);
        stakes.releaseReservation(job, provider);
        _expectReserve(StakeAccounts.AlreadyReserved.selector, _lease(30e6, 1), PROVIDER_KEY);
    }

    function test_bond__coordinator__same_call_by_its_wallet() public {
        vm.prank(coordinator);
        stakes.stake(20e6);
        Messages.LeaseAccept memory bond = lease(job, coordinator, 20e6, keccak256("session"));
        stakes.reserve(bond, sign(hashes.lease(bond), COORDINATOR_KEY));
        assertEq(stakes.reservation(job, coordinator), 20e6, "bond");
    }

    // --- slashing

    function test_slash__after_announcement__split_as_announced() public {
        _reserve(30e6, 1);
        uint256 id = _announce(20e6, 6e6, 4e6);
        later(5);
        uint256 before = token.balanceOf(stranger);
        vm.prank(slasher);
        stakes.executeSlash(id);
        assertEq(token.balanceOf(stranger) - before, 4e6, "bounty");
        assertEq(escrow.remaining(job), 106e6, "restitution to the job");
        assertEq(token.balanceOf(stakes.BURN()), 10e6, "burned");
        assertEq(stakes.reservation(job, provider), 10e6, "taken from the reservation first");
        assertEq(stakes.totalStaked(), 80e6, "total");
        assertEq(token.balanceOf(address(stakes)), 80e6, "tokens");
    }

    function test_slash__takes_reservation_then_free_then_matured_unbonding() public {
        _reserve(30e6, 1);
        vm.prank(provider);
        stakes.requestUnbond(50e6);
        later(1000);
        uint256 id = _announce(90e6, 0, 0);
        later(5);
        vm.prank(slasher);
        stakes.executeSlash(id);
        StakeAccounts.Account memory account = stakes.accountOf(provider);
        assertEq(account.active, 0, "active");
        assertEq(account.reserved, 0, "reserved");
        assertEq(account.unbonding, 10e6, "matured unbonding stake is reached");
        assertEq(token.balanceOf(address(stakes)), 10e6, "tokens");
    }

    function test_slash__other_jobs_reservations__are_not_touched() public {
        (, bytes32 other) = openJob(1e6);
        Messages.LeaseAccept memory elsewhere = lease(other, provider, 60e6, keccak256("s"));
        stakes.reserve(elsewhere, sign(hashes.lease(elsewhere), PROVIDER_KEY));
        assertEq(stakes.slashable(job, provider), 40e6, "slashable");
        _expectAnnounce(StakeRegistry.SlashCap.selector, 40e6 + 1, 0, 0);
        uint256 id = _announce(40e6, 0, 0);
        later(5);
        vm.prank(slasher);
        stakes.executeSlash(id);
        assertEq(stakes.reservation(other, provider), 60e6, "untouched");
    }

    function test_slash__caps__revert() public {
        _expectAnnounce(TokenHolder.ZeroAmount.selector, 0, 0, 0);
        _expectAnnounce(StakeRegistry.SlashCap.selector, 100e6 + 1, 0, 0);
        _expectAnnounce(StakeRegistry.SlashCap.selector, 50e6, 0, 10e6 + 1);
        _expectAnnounce(StakeRegistry.SlashCap.selector, 50e6, 25e6 + 1, 0);
        _expectAnnounce(StakeRegistry.SlashCap.selector, 50e6, 15e6 + 1, 10e6);
        _announce(50e6, 15e6, 10e6);
    }

    function test_slash__open_case__freezes_the_stake() public {
        _reserve(30e6, 1);
        vm.prank(provider);
        stakes.requestUnbond(10e6);
        _close();
        later(60);
        uint256 id = _announce(20e6, 0, 0);
        vm.prank(provider);
        vm.expectPartialRevert(StakeAccounts.CaseOpen.selector);
        stakes.withdraw();
        vm.expectPartialRevert(StakeAccounts.CaseOpen.selector);
        stakes.releaseReservation(job, provider);
        (, job) = openJob(1e6);
        _expectReserve(StakeAccounts.CaseOpen.selector, _lease(1e6, 2), PROVIDER_KEY);
        vm.prank(slasher);
        stakes.dropSlash(id);
        vm.prank(provider);
        stakes.withdraw();
    }

    function test_slash__too_early_or_late__reverts() public {
        uint256 id = _announce(20e6, 0, 0);
        later(4);
        _expectExecute(StakeRegistry.NotExecutable.selector, id);
        later(21);
        _expectExecute(StakeRegistry.NotExecutable.selector, id);
        vm.prank(stranger); // anyone, once it ran out
        stakes.dropSlash(id);
        assertEq(stakes.accountOf(provider).openCases, 0, "cases");
        assertEq(stakes.accountOf(provider).active, 100e6, "nothing taken");
    }

    function test_slash__ends_once() public {
        uint256 id = _announce(20e6, 0, 0);
        later(5);
        vm.prank(slasher);
        stakes.executeSlash(id);
        _expectExecute(StakeRegistry.UnknownCase.selector, id);
        vm.expectPartialRevert(StakeRegistry.UnknownCase.selector);
        stakes.dropSlash(id);
    }

    function test_slash__several_cases__never_more_than_there_is() public {
        uint256 first = _announce(80e6, 0, 0);
        uint256 second = _announce(80e6, 24e6, 16e6);
        later(5);
        vm.startPrank(slasher);
        stakes.executeSlash(first);
        uint256 before = token.balanceOf(stranger);
        stakes.executeSlash(second);
        vm.stopPrank();
        assertEq(token.balanceOf(stranger) - before, 4e6, "bounty in proportion to what was left");
        assertEq(token.balanceOf(address(stakes)), 0, "all of it");
    }

    function test_slash__strangers__revert() public {
        vm.expectPartialRevert(StakeRegistry.NotSlasher.selector);
        stakes.announceSlash(provider, job, 1e6, 0, stranger, 0, 0);
        uint256 id = _announce(20e6, 0, 0);
        vm.expectPartialRevert(StakeRegistry.NotSlasher.selector);
        stakes.executeSlash(id);
        vm.expectPartialRevert(StakeRegistry.NotSlasherOrAdmin.selector);
        stakes.dropSlash(id);
        vm.prank(admin);
        stakes.dropSlash(id);
    }

    function testFuzz_slash__any_split__conserves(uint96 amount, uint96 restitution, uint96 bounty, uint96 reserved)
        public
    {
        amount = uint96(bound(amount, 1, 100e6));
        bounty = uint96(bound(bounty, 0, amount / 5));
        restitution = uint96(bound(restitution, 0, amount / 2 - bounty));
        reserved = uint96(bound(reserved, 1, 100e6));
        _reserve(reserved, 1);
        uint256 id = _announce(amount, restitution, bounty);
        uint256 bountyBefore = token.balanceOf(stranger);
        later(5);
        vm.prank(slasher);
        stakes.executeSlash(id);
        uint256 parts = escrow.remaining(job) - 100e6 + token.balanceOf(stranger) - bountyBefore
            + token.balanceOf(stakes.BURN());
        StakeAccounts.Account memory account = stakes.accountOf(provider);
        assertEq(parts, amount, "taken = restitution + bounty + burned");
        assertEq(account.active, 100e6 - amount, "active");
        assertTrue(account.reserved <= account.active, "reserved within active");
        assertTrue(2 * token.balanceOf(stakes.BURN()) >= amount, "at least half is burned");
    }

    function _stake(uint96 amount) private {
        vm.prank(provider);
        stakes.stake(amount);
    }

    function _lease(uint96 amount, uint256 session) private view returns (Messages.LeaseAccept memory) {
        return lease(job, provider, amount, bytes32(session));
    }

    function _reserve(uint96 amount, uint256 session) private {
        Messages.LeaseAccept memory it = _lease(amount, session);
        stakes.reserve(it, sign(hashes.lease(it), PROVIDER_KEY));
    }

    function _expectReserve(bytes4 selector, Messages.LeaseAccept memory it, uint256 key) private {
        bytes memory signature = sign(hashes.lease(it), key);
        vm.expectPartialRevert(selector);
        stakes.reserve(it, signature);
    }

    function _announce(uint96 amount, uint96 restitution, uint96 bounty) private returns (uint256) {
        vm.prank(slasher);
        return stakes.announceSlash(provider, job, amount, restitution, stranger, bounty, keccak256("evidence"));
    }

    function _expectAnnounce(bytes4 selector, uint96 amount, uint96 restitution, uint96 bounty) private {
        vm.prank(slasher);
        vm.expectPartialRevert(selector);
        stakes.announceSlash(provider, job, amount, restitution, stranger, bounty, 0);
    }

    function _expectExecute(bytes4 selector, uint256 id) private {
        vm.prank(slasher);
        vm.expectPartialRevert(selector);
        stakes.executeSlash(id);
    }

    function _close() private {
        Messages.Seal memory seal = lastSeal(job, 9, 30e6);
        escrow.requestClose(header, seal, signSeal(seal), noLeaf());
    }
}
