// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {JobEscrow} from "../src/JobEscrow.sol";
import {Deployed} from "./Deployed.sol";
import {Test} from "./Harness.sol";

/// @dev Everybody at once, honest or not, in random order: a coordinator that grants and seals what it
/// likes, members in league with it, a poster that reclaims at any time, a slasher, and a relayer that
/// sends again, at any later time, whatever was signed, or that with a byte changed. Ghosts say what
/// should be true; they follow what was signed and done, and never read what they check.
contract Handler is Deployed {
    uint256 internal constant NUM_JOBS = 2;
    uint256 internal constant NUM_ACCOUNTS = 4;
    address internal constant RELAYER = address(0x4E1A); // no party to anything

    JobEscrow.JobHeader[] internal headers;
    bytes32[] public jobs;
    address[] public accounts;
    uint256[] internal keys;
    bytes[] internal signedCalls;

    struct Seen {
        uint80 limit;
        uint80 claimed;
        uint80 earned;
        uint80 stake;
        uint256 endedAt; // 0: works, as far as it and the coordinator say
        uint80 slashAmount;
        uint256 slashFrom;
    }

    struct Growth {
        uint256 time;
        uint256 amount;
    }

    struct Shown {
        Leaf[] leaves;
        bytes signature;
    }

    mapping(bytes32 job => mapping(address account => Seen)) internal seen;
    mapping(bytes32 job => mapping(address account => uint256)) public bestVested;
    mapping(bytes32 job => Shown[]) internal shownSeals;
    mapping(bytes32 job => Growth[]) internal growth;
    mapping(bytes32 job => uint256) internal closedAt;
    mapping(bytes32 job => uint256) public deposited;
    mapping(bytes32 job => uint256) public reclaimed;
    mapping(bytes32 call => bool) internal withdrawn;
    bytes32 internal suspectJob;
    address internal suspect;
    string public broken;

    function setUp() public override {
        super.setUp();
        keys = [POSTER, WORKER, FRIEND, STRANGER];
        for (uint256 i = 0; i < NUM_ACCOUNTS; ++i) {
            accounts.push(vm.addr(keys[i]));
            fund(accounts[i], 50e6);
        }
        for (uint256 i = 0; i < NUM_JOBS; ++i) {
            JobEscrow.JobHeader memory header = newHeader(30e6, 10e6, uint80(i == 0 ? 3600e6 : 7));
            bytes32 job = idOf(header);
            headers.push(header);
            jobs.push(job);
            deposited[job] = 30e6;
        }
        for (uint256 i = 0; i < NUM_JOBS; ++i) {
            if (!_send(abi.encodeCall(escrow.open, (headers[i], sign(jobs[i], POSTER))))) broken = "not opened";
        }
    }

    function system() external view returns (JobEscrow, address) {
        return (escrow, address(token));
    }

    // ---- what is signed, is sent at once and kept ----

    function grants(uint256 index, uint256 a, uint256 b, uint80 first, uint80 second) external {
        JobEscrow.JobHeader memory header = headers[index % NUM_JOBS];
        uint256[] memory limits = new uint256[](2);
        (address one_, address two) = (accounts[a % NUM_ACCOUNTS], accounts[b % NUM_ACCOUNTS]);
        limits[0] = asking(one_, limitOf(idOf(header), one_) + first % 12e6)[0];
        limits[1] = asking(two, limitOf(idOf(header), two) + second % 12e6)[0];
        uint40 by = soon();
        bytes memory signature = sign(grantHash(idOf(header), limits, by), COORDINATOR);
        _send(abi.encodeCall(escrow.grant, (header, limits, by, signature)));
    }

    function bonds(uint256 index, uint256 who, uint80 stake, bool inList) external {
        (bytes32 job, uint256 key, uint40 by) = (jobs[index % NUM_JOBS], keys[who % NUM_ACCOUNTS], soon());
        stake = stake % 20e6;
        bytes memory signature = sign(bondHash(job, vm.addr(key), stake, by), key);
        JobEscrow.SignedBond[] memory list = new JobEscrow.SignedBond[](1);
        list[0] = JobEscrow.SignedBond(vm.addr(key), stake, by, signature);
        if (inList) _send(abi.encodeCall(escrow.bondMany, (job, list)));
        else _send(abi.encodeCall(escrow.bond, (job, vm.addr(key), stake, by, signature)));
    }

    function quits(uint256 index, uint256 who, uint80 keep) external {
        (bytes32 job, uint256 key, uint40 by) = (jobs[index % NUM_JOBS], keys[who % NUM_ACCOUNTS], soon());
        bytes memory signature = sign(quitHash(job, vm.addr(key), keep % 8e6, by), key);
        bool done = _send(abi.encodeCall(escrow.quit, (job, vm.addr(key), keep % 8e6, by, signature)));
        if (!done) broken = "J6: an account cannot quit";
        _ended(job, vm.addr(key));
    }

    function ends(uint256 index, uint256 who) external {
        JobEscrow.JobHeader memory header = headers[index % NUM_JOBS];
        (address[] memory gone, uint40 by) = (only(accounts[who % NUM_ACCOUNTS]), soon());
        bytes memory signature = sign(endHash(idOf(header), gone, by), COORDINATOR);
        if (_send(abi.encodeCall(escrow.end, (header, gone, by, signature)))) _ended(idOf(header), gone[0]);
    }

    function closes(uint256 index, uint256 dice) external {
        if (dice % 6 != 0) return; // a closed job has little left to attack
        (JobEscrow.JobHeader memory header, uint40 by) = (headers[index % NUM_JOBS], soon());
        bytes32 job = idOf(header);
        bytes memory signature = sign(closeHash(job, by), POSTER);
        if (!_send(abi.encodeCall(escrow.close, (header, by, signature)))) broken = "the poster cannot close";
        if (closedAt[job] == 0) closedAt[job] = vm.getBlockTimestamp();
    }

    function withdrawsSigned(uint256 who, uint96 amount, uint96 fee) external {
        (uint256 key, uint40 by) = (keys[who % NUM_ACCOUNTS], soon());
        (, uint32 number) = escrow.balances(vm.addr(key));
        (amount, fee) = (amount % 10e6, fee % 1e6);
        bytes memory signature = sign(withdrawHash(vm.addr(key), amount, fee, number, by), key);
        _send(abi.encodeCall(escrow.withdrawFor, (vm.addr(key), amount, fee, number, by, signature)));
    }

    /// @dev A seal of anything: accounts without a limit, more vested than earned, less than before.
    function seal(uint256 index, uint80[4] calldata earned, uint80[4] calldata vested) external {
        bytes32 job = jobs[index % NUM_JOBS];
        Shown storage shown = shownSeals[job].push();
        Leaf[] memory leaves = new Leaf[](NUM_ACCOUNTS);
        for (uint256 i = 0; i < NUM_ACCOUNTS; ++i) {
            leaves[i] = Leaf(accounts[i], earned[i] % 20e6, vested[i] % 12e6);
            shown.leaves.push(leaves[i]);
            if (leaves[i].vested > bestVested[job][accounts[i]]) bestVested[job][accounts[i]] = leaves[i].vested;
        }
        (bytes32 root,,) = pathOf(nodesOf(leaves), 0, 0);
        shown.signature = sign(sealHash(job, root), COORDINATOR);
    }

    function claims(uint256 index, uint256 which, uint256 who) external {
        bytes32 job = jobs[index % NUM_JOBS];
        if (shownSeals[job].length == 0) return;
        Shown memory shown = shownSeals[job][which % shownSeals[job].length];
        (, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(shown.leaves), who % NUM_ACCOUNTS, 0);
        Leaf memory it = shown.leaves[who % NUM_ACCOUNTS];
        bytes memory call = abi.encodeCall(
            escrow.claim,
            (headers[index % NUM_JOBS], DETAILS, shown.signature, it.account, it.earned, it.vested, sides, path)
        );
        if (!_send(call)) broken = "J3: a seal is not taken";
    }

    function claimsAll(uint256 index, uint256 which) external {
        bytes32 job = jobs[index % NUM_JOBS];
        if (shownSeals[job].length == 0) return;
        Shown memory shown = shownSeals[job][which % shownSeals[job].length];
        bytes memory leaves = packed(shown.leaves, 0, NUM_ACCOUNTS);
        bytes32[] memory path;
        bytes memory call =
            abi.encodeCall(escrow.claimAll, (headers[index % NUM_JOBS], DETAILS, shown.signature, leaves, 0, path));
        if (!_send(call)) broken = "J3: a seal is not taken";
    }

    /// @dev Anybody sends anything that was ever signed.
    function replay(uint256 which) external {
        _call(signedCalls[which % signedCalls.length], RELAYER);
    }

    /// @dev Or that with one byte changed.
    function tamper(uint256 which, uint256 where, uint8 mask) external {
        bytes memory call = signedCalls[which % signedCalls.length];
        where = 4 + where % (call.length - 4);
        call[where] = call[where] ^ bytes1(mask == 0 ? 1 : mask);
        _call(call, RELAYER);
    }

    // ---- what parties do themselves ----

    function releases(uint256 index, uint256 who) external {
        (bytes32 job, address account) = (jobs[index % NUM_JOBS], accounts[who % NUM_ACCOUNTS]);
        Seen storage it = seen[job][account];
        uint256 ended = it.endedAt;
        if (ended == 0 || (closedAt[job] != 0 && closedAt[job] < ended)) ended = closedAt[job];
        bool isOver = ended != 0 && vm.getBlockTimestamp() >= ended + TAIL;
        (uint80 limit, uint80 stake) = (it.limit, it.stake);
        if (!_call(abi.encodeCall(escrow.release, (job, only(account))), RELAYER)) broken = "J6: no release";
        if (isOver && it.stake != 0) broken = "J6: stake is not free";
        if (!isOver && (it.stake != stake || it.limit != limit)) broken = "J6: released too early";
        if (isOver) (it.endedAt, it.slashAmount) = (0, 0);
    }

    function reclaims(uint256 index, uint256 who, uint80 amount) external {
        (bytes32 job, address caller) = (jobs[index % NUM_JOBS], who % 4 == 0 ? RELAYER : poster);
        (uint80 before,,,) = escrow.jobs(job);
        bool done = _call(abi.encodeCall(escrow.reclaim, (headers[index % NUM_JOBS], amount % 30e6)), caller);
        (uint80 left,,,) = escrow.jobs(job);
        bool isOver = closedAt[job] != 0 && vm.getBlockTimestamp() >= closedAt[job] + TAIL;
        if (done != (caller == poster || isOver)) broken = "J5: who may reclaim";
        reclaimed[job] += before - left;
    }

    function tops(uint256 index, uint80 amount) external {
        (bytes32 job, uint80 more) = (jobs[index % NUM_JOBS], amount % 10e6);
        if (_call(abi.encodeCall(escrow.topUp, (job, more)), stranger)) deposited[job] += more;
    }

    function deposits(uint256 who, uint96 amount) external {
        _call(abi.encodeCall(escrow.deposit, (accounts[who % NUM_ACCOUNTS], amount % 10e6)), stranger);
    }

    function withdraws(uint256 who, uint96 amount) external {
        address account = accounts[who % NUM_ACCOUNTS];
        _call(abi.encodeCall(escrow.withdraw, (account, amount % 10e6)), account);
    }

    function announces(uint256 index, uint256 who, uint80 amount, uint256 dice) external {
        (bytes32 job, address account) = (jobs[index % NUM_JOBS], accounts[who % NUM_ACCOUNTS]);
        Seen storage it = seen[job][account];
        amount = amount % (it.stake + 2);
        bool isOpen = it.slashAmount != 0 && vm.getBlockTimestamp() < it.slashFrom + EXECUTE;
        address caller = _slashing(dice);
        if (!_call(abi.encodeCall(escrow.announce, (job, account, amount, "")), caller)) return;
        if (caller != slasher || isOpen || amount == 0 || amount > it.stake) broken = "slash: announced";
        (it.slashAmount, it.slashFrom) = (amount, vm.getBlockTimestamp() + ANNOUNCE);
        (suspectJob, suspect) = (job, account);
    }

    /// @dev Mostly of who was announced last.
    function burns(uint256 index, uint256 who, uint256 dice) external {
        (bytes32 job, address account) = (jobs[index % NUM_JOBS], accounts[who % NUM_ACCOUNTS]);
        if (dice % 3 != 0 && suspect != address(0)) (job, account) = (suspectJob, suspect);
        Seen storage it = seen[job][account];
        (uint256 stake, uint256 now_) = (it.stake, vm.getBlockTimestamp());
        address caller = _slashing(dice);
        if (!_call(abi.encodeCall(escrow.burn, (job, account)), caller)) return;
        bool inTime = it.slashFrom <= now_ && now_ < it.slashFrom + EXECUTE;
        if (caller != slasher || !inTime || stake != it.stake + it.slashAmount) broken = "slash: burned";
        it.slashAmount = 0;
        _ended(job, account);
    }

    function drops(uint256 index, uint256 who, uint256 dice) external {
        (bytes32 job, address account) = (jobs[index % NUM_JOBS], accounts[who % NUM_ACCOUNTS]);
        bool done = _call(abi.encodeCall(escrow.drop, (job, account)), _slashing(dice));
        if (done) seen[job][account].slashAmount = 0;
    }

    function waits(uint256 secs) external {
        later(secs % 3 == 0 ? secs % TAIL : secs % 20);
    }

    // ---- what is checked after each call ----

    function growthWithin(uint256 index) external view returns (bool) {
        Growth[] storage all = growth[jobs[index]];
        (uint256 burst, uint256 rate) = (headers[index].burst, headers[index].rate);
        for (uint256 from = 0; from < all.length; ++from) {
            uint256 sum;
            for (uint256 to = from; to < all.length; ++to) {
                sum += all[to].amount;
                if (sum > burst + rate * (all[to].time - all[from].time) / 1 hours) return false;
            }
        }
        return true;
    }

    /// @dev All seals, shown to whoever can still be paid.
    function showAll(uint256 index) external {
        for (uint256 k = 0; k < shownSeals[jobs[index]].length; ++k) {
            this.claimsAll(index, k);
        }
    }

    function _slashing(uint256 dice) private view returns (address) {
        return dice % 5 == 0 ? canceller : slasher;
    }

    function _ended(bytes32 job, address account) private {
        Seen storage it = seen[job][account];
        if (it.endedAt == 0) it.endedAt = vm.getBlockTimestamp();
    }

    function _send(bytes memory call) private returns (bool done) {
        signedCalls.push(call);
        done = _call(call, RELAYER);
    }

    function _call(bytes memory call, address caller) private returns (bool done) {
        vm.prank(caller);
        (done,) = address(escrow).call(call);
        bytes4 selector = bytes4(call);
        if (done && selector == escrow.withdrawFor.selector) {
            if (withdrawn[keccak256(call)]) broken = "a signed withdrawal counts twice";
            withdrawn[keccak256(call)] = true;
        }
        for (uint256 i = 0; i < NUM_JOBS; ++i) {
            _watch(jobs[i], selector);
        }
    }

    function _watch(bytes32 job, bytes4 selector) private {
        bool isRelease = selector == escrow.release.selector;
        bool isQuit = selector == escrow.quit.selector;
        bool isBurn = selector == escrow.burn.selector;
        uint256 grown;
        for (uint256 i = 0; i < NUM_ACCOUNTS; ++i) {
            Seen storage last = seen[job][accounts[i]];
            (uint80 limit, uint80 claimed, uint80 earned,) = escrow.granted(job, accounts[i]);
            uint80 stake = stakeOf(job, accounts[i]);
            if (limit < last.limit && !isQuit && !isRelease) broken = "J7: a limit fell";
            if (stake < last.stake && !isBurn && !isRelease) broken = "J6: a stake fell";
            if (claimed < last.claimed || earned < last.earned) broken = "J7: claimed or earned fell";
            if (limit > last.limit) grown += limit - last.limit;
            (last.limit, last.claimed, last.earned, last.stake) = (limit, claimed, earned, stake);
        }
        if (grown > 0) growth[job].push(Growth(vm.getBlockTimestamp(), grown));
    }
}

/// @dev J1 to J7 of `JobEscrow`, over random histories of `Handler`.
contract InvariantsTest is Test {
    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    Handler internal handler;
    JobEscrow internal escrow;
    address internal token;

    function setUp() public {
        handler = new Handler();
        handler.setUp();
        (escrow, token) = handler.system();
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    /// @dev What happens often is listed often.
    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        bytes4[30] memory listed = [
            handler.grants.selector, handler.grants.selector, handler.grants.selector, handler.grants.selector,
            handler.seal.selector, handler.seal.selector, handler.claims.selector, handler.claims.selector,
            handler.claimsAll.selector, handler.bonds.selector, handler.bonds.selector, handler.quits.selector,
            handler.ends.selector, handler.closes.selector, handler.releases.selector, handler.releases.selector,
            handler.reclaims.selector, handler.reclaims.selector, handler.tops.selector, handler.deposits.selector,
            handler.withdraws.selector, handler.withdrawsSigned.selector, handler.announces.selector,
            handler.burns.selector, handler.burns.selector, handler.drops.selector, handler.waits.selector,
            handler.replay.selector, handler.replay.selector, handler.tamper.selector
        ];
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(handler), new bytes4[](listed.length));
        for (uint256 i = 0; i < listed.length; ++i) {
            targets[0].selectors[i] = listed[i];
        }
    }

    function invariant_J1__tokens_cover_balances_stakes_and_budgets() public view {
        (uint256 sum,) = escrow.balances(escrow.BURN());
        for (uint256 a = 0; a < 4; ++a) {
            (uint256 balance,) = escrow.balances(handler.accounts(a));
            sum += balance;
        }
        for (uint256 i = 0; i < 2; ++i) {
            bytes32 job = handler.jobs(i);
            (uint256 left,,,) = escrow.jobs(job);
            for (uint256 a = 0; a < 4; ++a) {
                (, uint256 claimed,,) = escrow.granted(job, handler.accounts(a));
                (uint256 stake,,,) = escrow.bonds(job, handler.accounts(a));
                left -= claimed;
                sum += stake;
            }
            sum += left;
        }
        (, bytes memory held) = token.staticcall(abi.encodeWithSignature("balanceOf(address)", escrow));
        assertEq(abi.decode(held, (uint256)), sum, "J1");
    }

    function invariant_J2__limits_are_committed_and_cover_what_is_claimed_or_earned() public view {
        for (uint256 i = 0; i < 2; ++i) {
            bytes32 job = handler.jobs(i);
            (uint256 funded, uint256 committed,,) = escrow.jobs(job);
            uint256 sum;
            for (uint256 a = 0; a < 4; ++a) {
                (uint256 limit, uint256 claimed, uint256 earned,) = escrow.granted(job, handler.accounts(a));
                assertLe(claimed, limit, "J2 claimed");
                assertLe(earned, limit, "J2 earned");
                sum += limit;
            }
            assertEq(sum, committed, "J2 limits");
            assertLe(committed, funded, "J2 committed");
        }
    }

    function invariant_J3__best_seal_pays_up_to_the_limit() public {
        for (uint256 i = 0; i < 2; ++i) {
            handler.showAll(i);
            bytes32 job = handler.jobs(i);
            for (uint256 a = 0; a < 4; ++a) {
                address account = handler.accounts(a);
                (uint256 limit, uint256 claimed,,) = escrow.granted(job, account);
                uint256 best = handler.bestVested(job, account);
                // A limit may have been raised and lowered, never below what was claimed.
                assertEq(claimed, best < limit ? best : limit, "J3");
            }
        }
    }

    function invariant_J4__limits_grow_as_the_token_bucket_lets_them() public view {
        for (uint256 i = 0; i < 2; ++i) {
            assertTrue(handler.growthWithin(i), "J4");
        }
    }

    function invariant_J5__poster_gets_no_more_than_was_not_earned() public view {
        for (uint256 i = 0; i < 2; ++i) {
            bytes32 job = handler.jobs(i);
            uint256 kept;
            for (uint256 a = 0; a < 4; ++a) {
                (, uint256 claimed, uint256 earned,) = escrow.granted(job, handler.accounts(a));
                kept += claimed > earned ? claimed : earned;
            }
            assertLe(handler.reclaimed(job) + kept, handler.deposited(job), "J5");
        }
    }

    function invariant_J6_J7__stake_comes_free_and_nothing_falls() public view {
        assertTrue(bytes(handler.broken()).length == 0, handler.broken());
    }
}
