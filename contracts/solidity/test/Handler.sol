// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {EpochWindow} from "../src/EpochWindow.sol";
import {JobClosing} from "../src/JobClosing.sol";
import {Messages} from "../src/Messages.sol";
import {Settlement} from "../src/Settlement.sol";
import {StakeAccounts} from "../src/StakeAccounts.sol";
import {SumTree} from "../src/SumTree.sol";
import {Deployed} from "./Deployed.sol";
import {Trees} from "./Trees.sol";

/// @dev Everybody at once, honest or not, in random order: posters, a proposer who pays whom he likes
/// and lies about sums, claimants, a disputes role that rejects at random, stakers and a slasher.
/// Ghosts say what should be true; they follow successful calls and never read what they check.
contract Handler is Deployed {
    struct Leaf {
        address account;
        uint96 cumulative;
        bytes32 jobsRoot;
        uint256 sides;
        bytes path;
    }

    uint256 internal constant NUM_KEYS = 4;

    Messages.JobHeader[] public headers;
    bytes32[] public jobs;
    address[] public accounts;
    uint256[] public cases;

    // Per job: what went in and what went back to the poster.
    mapping(bytes32 job => uint256) public depositedOf;
    mapping(bytes32 job => uint256) public refundedOf;
    // Per epoch: what each job was debited, and what became of the epoch.
    mapping(uint48 epoch => mapping(bytes32 job => uint256)) public debitOf;
    mapping(uint48 epoch => mapping(bytes32 job => bool)) public restored;
    mapping(uint48 epoch => bool) public rejected;
    mapping(uint48 epoch => uint256) public windowEnds;
    mapping(uint48 epoch => bytes32) public rootOf;
    mapping(uint48 epoch => Leaf[]) internal _leaves;
    uint48 public numEpochs;
    uint48 public finalEpoch; // newest that was seen booked as final
    bool public overwritten; // a proposal replaced an epoch in its window
    // Per account: what it got, from token transfers.
    mapping(address account => uint256) public receivedOf;
    mapping(string action => uint256) public did;

    function setUp() public override {
        super.setUp();
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            accounts.push(vm.addr(_key(i)));
            give(accounts[i], 1_000e6);
            stake(i, 100e6);
        }
        open(0, 0);
        open(1, 0);
    }

    // --- posters

    function open(uint256 seed, uint256 extra) public {
        if (jobs.length == 10) return;
        uint96 amount = uint96(bound(extra, 1e6, 200e6));
        seed;
        (Messages.JobHeader memory header, bytes32 job) = openJob(amount);
        headers.push(header);
        jobs.push(job);
        depositedOf[job] += amount;
    }

    function topUp(uint256 which, uint96 amount) external {
        bytes32 job = jobs[which % jobs.length];
        amount = uint96(bound(amount, 1, 50e6));
        vm.prank(stranger);
        escrow.topUp(job, amount);
        depositedOf[job] += amount;
        did["topUp"]++;
    }

    function close(uint256 which, uint96 earned, uint96 vested, bool last, bool unsealed) external {
        if (which % 4 != 0) return; // most jobs live a while
        uint256 index = (which >> 2) % jobs.length;
        (, uint96 debited) = escrow.fundsOf(jobs[index]);
        earned = debited + uint96(bound(earned, 0, 60e6));
        vested = last ? earned - uint96(bound(vested, 0, earned - debited)) : earned;
        Messages.Seal memory seal = sealOf(jobs[index], uint64(which % 100), earned, vested);
        seal.last = last;
        if (unsealed) {
            vm.prank(poster);
            escrow.requestCloseUnsealed(headers[index]);
        } else if (escrow.stateOf(jobs[index]) == JobClosing.JobState.Closing) {
            escrow.answerClose(headers[index], seal, signSeal(seal), noLeaf());
        } else {
            escrow.requestClose(headers[index], seal, signSeal(seal), noLeaf());
        }
        did["close"]++;
    }

    function refund(uint256 which) external {
        bytes32 job = jobs[which % jobs.length];
        uint256 before = token.balanceOf(poster);
        escrow.refund(job);
        refundedOf[job] += token.balanceOf(poster) - before;
        did["refund"]++;
    }

    // --- the proposer

    /// @dev Debits random jobs and shares the whole total at random, whatever was promised before.
    function propose(uint256 seed, uint256 wait, uint8 mode) external {
        later(wait % 12);
        uint48 epoch = numEpochs + 1;
        uint96 total = _debits(epoch, seed);
        if (mode % 4 == 0) _lyingLeaves(epoch, total);
        else _leavesOf(epoch, total, seed, mode % 4 == 1);
        Settlement.Statement[] memory statements = _statements(epoch, seed);
        (EpochWindow.Epoch memory newest,) = settlement.newestEpoch();
        vm.prank(proposer);
        settlement.propose(epoch, rootOf[epoch], mode % 16 == 15 ? total + 1 : total, statements);
        if (epoch > 1 && !rejected[epoch - 1] && block.timestamp < windowEnds[epoch - 1]) overwritten = true;
        if (newest.state == EpochWindow.EpochState.Posted || newest.state == EpochWindow.EpochState.Disputed) {
            finalEpoch = epoch - 1;
        }
        windowEnds[epoch] = block.timestamp + 5;
        numEpochs = epoch;
        did["propose"]++;
    }

    function finalize(uint256 wait) external {
        later(wait % 12);
        settlement.finalize();
        finalEpoch = numEpochs;
        did["finalize"]++;
    }

    // --- the disputes role, and whoever restores

    function announce() external {
        vm.prank(disputes);
        settlement.announceRejection(numEpochs, keccak256("reason"));
        windowEnds[numEpochs] = block.timestamp + 25;
        did["announce"]++;
    }

    function reject(uint256 wait, bool some) external {
        later(5 + wait % 8);
        bytes32[] memory named = new bytes32[](some && debitOf[numEpochs][jobs[0]] != 0 ? 1 : 0);
        if (named.length == 1) named[0] = jobs[0];
        vm.prank(disputes);
        settlement.rejectDebits(numEpochs, named);
        rejected[numEpochs] = true;
        if (named.length == 1) restored[numEpochs][jobs[0]] = true;
        did["reject"]++;
    }

    function restore(uint256 which, uint48 epoch) external {
        bytes32[] memory named = new bytes32[](1);
        named[0] = jobs[which % jobs.length];
        if (epoch % 4 == 0) epoch = numEpochs; // perhaps restored before
        else (epoch, named[0]) = _unrestored();
        settlement.restoreDebits(epoch, named);
        restored[epoch][named[0]] = true;
        did["restore"]++;
    }

    // --- claimants

    function claim(uint256 which, uint256 older) external {
        uint48 epoch = older % 8 == 0 && finalEpoch > 1 ? finalEpoch - 1 : finalEpoch;
        Leaf memory leaf = _leaves[epoch][which % _leaves[epoch].length];
        uint256 before = token.balanceOf(leaf.account);
        settlement.claim(leaf.account, leaf.cumulative, leaf.jobsRoot, leaf.sides, leaf.path);
        receivedOf[leaf.account] += token.balanceOf(leaf.account) - before;
        did["claim"]++;
    }

    // --- stakers and the slasher

    function stake(uint256 who, uint96 amount) public {
        vm.prank(accounts[who % NUM_KEYS]);
        stakes.stake(uint96(bound(amount, 1, 100e6)));
    }

    function unbond(uint256 who, uint96 amount) external {
        address account = accounts[who % NUM_KEYS];
        StakeAccounts.Account memory it = stakes.accountOf(account);
        vm.prank(account);
        stakes.requestUnbond(uint96(bound(amount, 1, uint256(it.active) - it.reserved)));
        did["unbond"]++;
    }

    function withdraw(uint256 who, uint256 wait) external {
        later(wait % 3 == 0 ? 60 : 0);
        vm.prank(accounts[who % NUM_KEYS]);
        stakes.withdraw();
        did["withdraw"]++;
    }

    function reserve(uint256 who, uint256 which, uint96 amount) external {
        address account = accounts[who % NUM_KEYS];
        StakeAccounts.Account memory it = stakes.accountOf(account);
        amount = uint96(bound(amount, 1, uint256(it.active) - it.reserved));
        Messages.LeaseAccept memory signed = lease(jobs[which % jobs.length], account, amount, bytes32(which));
        stakes.reserve(signed, sign(hashes.lease(signed), _key(who % NUM_KEYS)));
        did["reserve"]++;
    }

    function release(uint256 who, uint256 which) external {
        stakes.releaseReservation(jobs[which % jobs.length], accounts[who % NUM_KEYS]);
        did["release"]++;
    }

    function announceSlash(uint256 who, uint256 which, uint96 amount, uint96 parts) external {
        bytes32 job = jobs[which % jobs.length];
        address account = accounts[who % NUM_KEYS];
        amount = uint96(bound(amount, 1, stakes.slashable(job, account)));
        uint96 bounty = uint96(bound(parts, 0, amount / 5));
        uint96 restitution = uint96(bound(parts >> 3, 0, amount / 2 - bounty));
        vm.prank(slasher);
        cases.push(stakes.announceSlash(account, job, amount, restitution, stranger, bounty, 0));
        did["announceSlash"]++;
    }

    function endSlash(uint256 which, bool drop, uint256 wait) external {
        later(wait % 8);
        uint256 id = cases[which % cases.length];
        (cases[which % cases.length], cases[cases.length - 1]) = (cases[cases.length - 1], id);
        cases.pop();
        (,, bytes32 job,,,,, uint40 until) = stakes.cases(id);
        drop = drop || block.timestamp >= until;
        uint256 before = token.balanceOf(address(escrow));
        vm.prank(slasher);
        if (drop) stakes.dropSlash(id);
        else stakes.executeSlash(id);
        depositedOf[job] += token.balanceOf(address(escrow)) - before;
        did["slash"]++;
    }

    // --- for the invariants

    function numJobs() external view returns (uint256) {
        return jobs.length;
    }

    function leavesOf(uint48 epoch) external view returns (Leaf[] memory) {
        return _leaves[epoch];
    }

    /// @dev Debits of a job that should stand: of final and pending epochs, and of rejected ones not yet restored.
    function standingDebits(bytes32 job) public view returns (uint256 sum) {
        for (uint48 epoch = 1; epoch <= numEpochs; ++epoch) {
            if (!restored[epoch][job]) sum += debitOf[epoch][job];
        }
    }

    function finalDebits() external view returns (uint256 sum) {
        for (uint48 epoch = 1; epoch <= finalEpoch; ++epoch) {
            for (uint256 i = 0; i < jobs.length && !rejected[epoch]; ++i) {
                sum += debitOf[epoch][jobs[i]];
            }
        }
    }

    function system()
        external
        view
        returns (address token_, address escrow_, address vault_, address stakes_, address settlement_)
    {
        return (address(token), address(escrow), address(vault), address(stakes), address(settlement));
    }

    function _key(uint256 i) private pure returns (uint256) {
        return 0xACC0 + i;
    }

    /// @dev A debit that waits to be restored, so that this is tried often enough.
    function _unrestored() private view returns (uint48, bytes32) {
        for (uint48 epoch = numEpochs; epoch > 0; --epoch) {
            for (uint256 i = 0; i < jobs.length && rejected[epoch]; ++i) {
                if (debitOf[epoch][jobs[i]] != 0 && !restored[epoch][jobs[i]]) return (epoch, jobs[i]);
            }
        }
        return (0, 0);
    }

    function _debits(uint48 epoch, uint256 seed) private returns (uint96 total) {
        (EpochWindow.Epoch memory newest, EpochWindow.EpochState state) = settlement.newestEpoch();
        (uint96 funded,) = settlement.totals();
        total = state == EpochWindow.EpochState.Final ? newest.rootSum : funded;
        for (uint256 i = 0; i < jobs.length; ++i) {
            if (seed >> i & 1 == 0) continue;
            bytes32 job = jobs[i];
            for (uint48 old = 1; old < epoch; ++old) {
                // The next debit restores what a rejected epoch took (only the newest can be unrestored).
                if (rejected[old] && debitOf[old][job] != 0) restored[old][job] = true;
            }
            uint256 room = depositedOf[job] - refundedOf[job] - standingDebits(job);
            if (escrow.stateOf(job) == JobClosing.JobState.Closed) {
                uint256 due = escrow.closingOf(job).due;
                uint256 before = standingDebits(job);
                due = due > before + room ? before + room : due;
                due = due < before ? before : due;
                debitOf[epoch][job] = due - before > CAP ? CAP : due - before;
            } else {
                debitOf[epoch][job] = bound(uint256(keccak256(abi.encode(seed, i))), 0, room > CAP ? CAP : room);
            }
            total += uint96(debitOf[epoch][job]);
        }
    }

    function _statements(uint48 epoch, uint256 seed) private view returns (Settlement.Statement[] memory all) {
        uint256 count;
        for (uint256 i = 0; i < jobs.length; ++i) {
            count += seed >> i & 1;
        }
        all = new Settlement.Statement[](count);
        count = 0;
        for (uint256 i = 0; i < jobs.length; ++i) {
            if (seed >> i & 1 == 0) continue;
            all[count++] = escrow.stateOf(jobs[i]) == JobClosing.JobState.Closed
                ? closedStatement(headers[i])
                : statement(headers[i], epoch, uint96(standingDebits(jobs[i]) + debitOf[epoch][jobs[i]]));
        }
    }

    function _leavesOf(uint48 epoch, uint96 total, uint256 seed, bool fair) private {
        Trees.Payout[] memory payouts = new Trees.Payout[](NUM_KEYS);
        uint96 left = total;
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            uint96 share = fair ? total / uint96(NUM_KEYS) : uint96(bound(uint256(keccak256(abi.encode(seed, i))), 0, left));
            if (i == NUM_KEYS - 1) share = left;
            left -= share;
            payouts[i] = Trees.Payout(accounts[i], keccak256(abi.encode(epoch, i)), share);
        }
        (rootOf[epoch],) = Trees.settlementRoot(payouts);
        delete _leaves[epoch];
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            (uint256 sides, bytes memory path) = Trees.settlementPath(payouts, i);
            _leaves[epoch].push(Leaf(accounts[i], payouts[i].cumulative, payouts[i].jobsRoot, sides, path));
        }
    }

    /// @dev Two leaves of `total` each under a root that claims `total`: the node states a wrong left sum.
    function _lyingLeaves(uint48 epoch, uint96 total) private {
        bytes32 jobsRoot = keccak256(abi.encode(epoch));
        bytes32 left = SumTree.settlementLeaf(accounts[0], jobsRoot, total);
        bytes32 right = SumTree.settlementLeaf(accounts[1], jobsRoot, total);
        rootOf[epoch] = keccak256(abi.encodePacked(bytes1(0x01), left, uint96(0), right, total));
        delete _leaves[epoch];
        _leaves[epoch].push(Leaf(accounts[0], total, jobsRoot, 0, abi.encodePacked(right, total)));
        _leaves[epoch].push(Leaf(accounts[1], total, jobsRoot, 1, abi.encodePacked(left, uint96(0))));
    }
}
