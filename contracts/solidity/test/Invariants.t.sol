// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Settlement} from "../src/Settlement.sol";
import {StakeAccounts} from "../src/StakeAccounts.sol";
import {StakeRegistry} from "../src/StakeRegistry.sol";
import {SumTree} from "../src/SumTree.sol";
import {Handler} from "./Handler.sol";
import {Test} from "./Harness.sol";
import {Folds} from "./SumTree.t.sol";

/// @dev I1 to I6 and I9 of the README, over random histories of `Handler`.
contract InvariantsTest is Test {
    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    Handler internal handler;
    Folds internal folds;
    IERC20 internal token;
    JobEscrow internal escrow;
    StakeRegistry internal stakes;
    Settlement internal settlement;
    address internal vault;
    mapping(address account => uint256) internal claimedBefore;

    function setUp() public {
        handler = new Handler();
        folds = new Folds();
        handler.setUp();
        (address token_, address escrow_, address vault_, address stakes_, address settlement_) = handler.system();
        (token, escrow, vault) = (IERC20(token_), JobEscrow(escrow_), vault_);
        (stakes, settlement) = (StakeRegistry(stakes_), Settlement(settlement_));
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), actions());
    }

    /// @dev What happens often is listed often.
    function actions() internal view returns (bytes4[] memory selectors) {
        bytes4[23] memory listed = [
            handler.propose.selector, handler.propose.selector, handler.propose.selector,
            handler.finalize.selector, handler.finalize.selector, handler.claim.selector, handler.claim.selector,
            handler.announce.selector, handler.reject.selector, handler.restore.selector, handler.open.selector,
            handler.topUp.selector, handler.close.selector, handler.refund.selector, handler.stake.selector,
            handler.unbond.selector, handler.withdraw.selector, handler.reserve.selector,
            handler.announceSlash.selector, handler.endSlash.selector, handler.release.selector,
            handler.restore.selector, handler.restore.selector
        ];
        selectors = new bytes4[](listed.length);
        for (uint256 i = 0; i < listed.length; ++i) {
            selectors[i] = listed[i];
        }
    }

    /// @dev The invariants are not empty words: one long history reaches every kind of event.
    function test_handler__long_history__reaches_every_event_and_keeps_all_invariants() external {
        bytes4[] memory selectors = actions();
        for (uint256 i = 0; i < 1000; ++i) {
            uint256 seed = uint256(keccak256(abi.encode("history", i)));
            // Small numbers fit every argument type, so no call is lost to a decoding error.
            bytes memory words = abi.encode(seed >> 16 & 0xff, seed >> 24 & 1, seed >> 32 & 0xf, seed >> 40 & 1, seed >> 48 & 1);
            (bool ok,) = address(handler).call(abi.encodePacked(selectors[seed % selectors.length], words));
            ok; // a refused action changes nothing
            if (i % 250 == 0) _checkAll();
        }
        string[13] memory events = [
            "propose", "finalize", "claim", "announce", "reject", "restore", "close", "refund", "unbond", "withdraw",
            "reserve", "announceSlash", "slash"
        ];
        for (uint256 i = 0; i < events.length; ++i) {
            assertTrue(handler.did(events[i]) > 0, events[i]);
        }
        _checkAll();
    }

    function _checkAll() private {
        this.invariant_I1__balances_cover_all_claims();
        this.invariant_I2__deposits_are_debits_refunds_and_remaining();
        this.invariant_I3__paid_at_most_funded();
        this.invariant_I4__claimed_never_falls_and_sums_to_paid();
        this.invariant_I5__claimed_at_most_a_final_leaf();
        this.invariant_I6__claimable_at_most_root_sum();
        this.invariant_I9__no_epoch_overwritten_or_revived();
        this.invariant_I10__reserved_within_active();
    }

    /// @dev I1, as an equality because nobody donates: every token in the system is somebody's.
    function invariant_I1__balances_cover_all_claims() external view {
        uint256 inJobs;
        uint256 notFinal;
        for (uint256 i = 0; i < handler.numJobs(); ++i) {
            bytes32 job = handler.jobs(i);
            inJobs += escrow.remaining(job);
            notFinal += handler.standingDebits(job);
        }
        (uint96 funded, uint96 paid) = settlement.totals();
        notFinal -= funded;
        uint256 staked = _staked();
        uint256 held = token.balanceOf(address(escrow)) + token.balanceOf(vault) + token.balanceOf(address(stakes));
        assertEq(held, inJobs + notFinal + (funded - paid) + staked, "held by the system");
        assertEq(token.balanceOf(vault), escrow.released() - paid, "vault");
        assertEq(token.balanceOf(address(stakes)), staked, "stakes");
    }

    /// @dev I2: per job, deposits and credits = debits + refunds + remaining.
    function invariant_I2__deposits_are_debits_refunds_and_remaining() external view {
        for (uint256 i = 0; i < handler.numJobs(); ++i) {
            bytes32 job = handler.jobs(i);
            (uint96 deposited, uint96 debited) = escrow.fundsOf(job);
            assertEq(debited, handler.standingDebits(job), "debited");
            assertEq(deposited, handler.depositedOf(job) - handler.refundedOf(job), "deposited");
            assertEq(escrow.remaining(job), uint256(deposited) - debited, "remaining");
        }
    }

    /// @dev I3: funded = debits of final epochs; paid never exceeds it.
    function invariant_I3__paid_at_most_funded() external view {
        (uint96 funded, uint96 paid) = settlement.totals();
        assertEq(funded, handler.finalDebits(), "funded");
        assertLe(paid, funded, "paid");
        assertLe(escrow.released(), funded, "released");
    }

    /// @dev I4: what an account claimed never falls, is what it received, and sums up to paid.
    function invariant_I4__claimed_never_falls_and_sums_to_paid() external {
        uint256 sum;
        for (uint256 i = 0; i < 4; ++i) {
            address account = handler.accounts(i);
            uint256 claimed = settlement.claimed(account);
            assertLe(claimedBefore[account], claimed, "fell");
            assertEq(claimed, handler.receivedOf(account), "received");
            claimedBefore[account] = claimed;
            sum += claimed;
        }
        (, uint96 paid) = settlement.totals();
        assertEq(sum, paid, "paid");
    }

    /// @dev I5: nobody got more than some final root granted him.
    function invariant_I5__claimed_at_most_a_final_leaf() external view {
        for (uint256 i = 0; i < 4; ++i) {
            address account = handler.accounts(i);
            uint256 most;
            for (uint48 epoch = 1; epoch <= handler.finalEpoch(); ++epoch) {
                Handler.Leaf[] memory leaves = handler.leavesOf(epoch);
                for (uint256 k = 0; k < leaves.length && !handler.rejected(epoch); ++k) {
                    bool greater = leaves[k].account == account && leaves[k].cumulative > most;
                    if (greater) most = leaves[k].cumulative;
                }
            }
            assertLe(settlement.claimed(account), most, "claimed");
        }
    }

    /// @dev I6: the leaves that the final root lets through sum to no more than it states, even if it lies.
    function invariant_I6__claimable_at_most_root_sum() external view {
        uint48 epoch = handler.finalEpoch();
        if (epoch == 0) return;
        (uint96 funded,) = settlement.totals();
        bytes32 finalRoot = settlement.finalRoot();
        Handler.Leaf[] memory leaves = handler.leavesOf(epoch);
        uint256 sum;
        for (uint256 i = 0; i < leaves.length; ++i) {
            Handler.Leaf memory it = leaves[i];
            bytes32 leaf = SumTree.settlementLeaf(it.account, it.jobsRoot, it.cumulative);
            (bytes32 root, uint96 total) = folds.fold(leaf, it.cumulative, it.sides, it.path);
            if (root == finalRoot && total == funded) sum += it.cumulative;
        }
        assertLe(sum, funded, "claimable");
    }

    /// @dev I7 and I9: no epoch is overwritten in its window, none rejected becomes final, and the final
    /// root is that of the newest final epoch.
    function invariant_I9__no_epoch_overwritten_or_revived() external view {
        assertTrue(!handler.overwritten(), "overwritten");
        uint48 epoch = handler.finalEpoch();
        if (epoch == 0) return;
        assertTrue(!handler.rejected(epoch), "a rejected epoch became final");
        assertEq(settlement.finalRoot(), handler.rootOf(epoch), "final root");
    }

    /// @dev I10, I11: reservations stay within active stake, whatever was slashed.
    function invariant_I10__reserved_within_active() external view {
        uint256 total;
        for (uint256 i = 0; i < 4; ++i) {
            address account = handler.accounts(i);
            StakeAccounts.Account memory it = stakes.accountOf(account);
            uint256 reserved;
            for (uint256 k = 0; k < handler.numJobs(); ++k) {
                reserved += stakes.reservation(handler.jobs(k), account);
            }
            assertEq(it.reserved, reserved, "sum of reservations");
            assertLe(it.reserved, it.active, "reserved");
            total += it.active;
        }
        assertEq(stakes.totalStaked(), total, "total staked");
    }

    function _staked() private view returns (uint256 sum) {
        for (uint256 i = 0; i < 4; ++i) {
            StakeAccounts.Account memory it = stakes.accountOf(handler.accounts(i));
            sum += uint256(it.active) + it.unbonding;
        }
    }
}
