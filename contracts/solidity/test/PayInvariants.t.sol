// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {PayEscrow} from "../src/PayEscrow.sol";
import {Funded} from "./Funded.sol";
import {Test} from "./Harness.sol";

/// @dev Everybody at once, honest or not, in random order: a coordinator that grants and seals what it
/// likes, members in league with it, a poster that reclaims at any time, a slasher, and strangers who
/// send again, at any later time, whatever was signed. Ghosts say what should be true; they follow
/// what was signed, and changes of limits, and never read what they check.
contract PayHandler is Funded {
    uint256 internal constant NUM_JOBS = 2;
    uint256 internal constant NUM_ACCOUNTS = 4;

    PayEscrow.JobHeader[] internal headers;
    bytes32[] public jobs;
    address[] public accounts;
    uint256[] internal keys;
    bytes[] internal signedCalls;

    struct Seen {
        uint80 limit;
        uint80 claimed;
        uint80 earned;
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
    mapping(bytes32 job => Shown[]) internal seals;
    mapping(bytes32 job => Growth[]) internal growth;
    mapping(bytes32 job => uint256) public deposited;
    mapping(bytes32 job => uint256) public reclaimed;
    mapping(string action => uint256) public did;
    string public broken;

    function setUp() public override {
        super.setUp();
        keys = [POSTER, WORKER, FRIEND, STRANGER];
        for (uint256 i = 0; i < NUM_ACCOUNTS; ++i) {
            accounts.push(vm.addr(keys[i]));
            fund(accounts[i], 50e6);
        }
        for (uint256 i = 0; i < NUM_JOBS; ++i) {
            (PayEscrow.JobHeader memory header, bytes32 job) = openJob(30e6, 10e6, uint80(i == 0 ? 3600e6 : 7));
            headers.push(header);
            jobs.push(job);
            deposited[job] = 30e6;
        }
    }

    function system() external view returns (PayEscrow, address) {
        return (escrow, address(token));
    }

    // ---- what is signed, is sent at once and kept ----

    function grants(uint256 at, uint256 a, uint256 b, uint80 first, uint80 second) external {
        PayEscrow.JobHeader memory header = headers[at % NUM_JOBS];
        uint256[] memory limits = new uint256[](2);
        (address one_, address two) = (accounts[a % NUM_ACCOUNTS], accounts[b % NUM_ACCOUNTS]);
        limits[0] = asking(one_, limitOf(idOf(header), one_) + first % 12e6)[0];
        limits[1] = asking(two, limitOf(idOf(header), two) + second % 12e6)[0];
        uint40 by = soon();
        bytes memory signature = sign(grantHash(idOf(header), limits, by), COORDINATOR);
        _send("grant", abi.encodeCall(escrow.grant, (header, limits, by, signature)));
    }

    function bonds(uint256 at, uint256 who, uint80 stake) external {
        (bytes32 job, uint256 key, uint40 by) = (jobs[at % NUM_JOBS], keys[who % NUM_ACCOUNTS], soon());
        stake = stake % 20e6;
        bytes memory signature = sign(bondHash(job, vm.addr(key), stake, by), key);
        _send("bond", abi.encodeCall(escrow.bond, (job, vm.addr(key), stake, by, signature)));
    }

    function quits(uint256 at, uint256 who, uint80 keep) external {
        (bytes32 job, uint256 key, uint40 by) = (jobs[at % NUM_JOBS], keys[who % NUM_ACCOUNTS], soon());
        bytes memory signature = sign(quitHash(job, vm.addr(key), keep % 8e6, by), key);
        _send("quit", abi.encodeCall(escrow.quit, (job, vm.addr(key), keep % 8e6, by, signature)));
    }

    function ends(uint256 at, uint256 who) external {
        PayEscrow.JobHeader memory header = headers[at % NUM_JOBS];
        (address[] memory gone, uint40 by) = (only(accounts[who % NUM_ACCOUNTS]), soon());
        bytes memory signature = sign(endHash(idOf(header), gone, by), COORDINATOR);
        _send("end", abi.encodeCall(escrow.end, (header, gone, by, signature)));
    }

    function closes(uint256 at, uint256 dice) external {
        if (dice % 6 != 0) return; // a closed job has little left to attack
        (PayEscrow.JobHeader memory header, uint40 by) = (headers[at % NUM_JOBS], soon());
        bytes memory signature = sign(closeHash(idOf(header), by), POSTER);
        _send("close", abi.encodeCall(escrow.close, (header, by, signature)));
    }

    /// @dev A seal of anything: accounts without a limit, more vested than earned, less than before.
    function seal(uint256 at, uint80[4] calldata earned, uint80[4] calldata vested) external {
        bytes32 job = jobs[at % NUM_JOBS];
        Shown storage shown = seals[job].push();
        Leaf[] memory leaves = new Leaf[](NUM_ACCOUNTS);
        for (uint256 i = 0; i < NUM_ACCOUNTS; ++i) {
            leaves[i] = Leaf(accounts[i], earned[i] % 20e6, vested[i] % 12e6);
            shown.leaves.push(leaves[i]);
            if (leaves[i].vested > bestVested[job][accounts[i]]) bestVested[job][accounts[i]] = leaves[i].vested;
        }
        (bytes32 root,,) = pathOf(nodesOf(leaves), 0, 0);
        shown.signature = sign(sealHash(job, root), COORDINATOR);
    }

    function claims(uint256 at, uint256 which, uint256 who) external {
        bytes32 job = jobs[at % NUM_JOBS];
        if (seals[job].length == 0) return;
        Shown memory shown = seals[job][which % seals[job].length];
        (, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(shown.leaves), who % NUM_ACCOUNTS, 0);
        Leaf memory it = shown.leaves[who % NUM_ACCOUNTS];
        PayEscrow.JobHeader memory header = headers[at % NUM_JOBS];
        bytes memory call =
            abi.encodeCall(escrow.claim, (header, DETAILS, shown.signature, it.account, it.earned, it.vested, sides, path));
        _send("claim", call);
    }

    function claimsAll(uint256 at, uint256 which) external {
        bytes32 job = jobs[at % NUM_JOBS];
        if (seals[job].length == 0) return;
        Shown memory shown = seals[job][which % seals[job].length];
        bytes memory leaves = packed(shown.leaves, 0, NUM_ACCOUNTS);
        bytes32[] memory path;
        _send("claimAll", abi.encodeCall(escrow.claimAll, (headers[at % NUM_JOBS], DETAILS, shown.signature, leaves, 0, path)));
    }

    /// @dev Anybody sends anything that was ever signed.
    function replay(uint256 which) external {
        if (signedCalls.length == 0) return;
        _call("replay", signedCalls[which % signedCalls.length], stranger);
    }

    // ---- what parties do themselves ----

    function releases(uint256 at, uint256 who) external {
        (bytes32 job, address account) = (jobs[at % NUM_JOBS], accounts[who % NUM_ACCOUNTS]);
        uint256 ended = escrow.endOf(job, account);
        _call("release", abi.encodeCall(escrow.release, (job, only(account))), stranger);
        bool isOver = ended != 0 && vm.getBlockTimestamp() >= ended + TAIL;
        if (isOver && stakeOf(job, account) != 0) broken = "J6: stake is not free";
    }

    function reclaims(uint256 at, uint256 who, uint80 amount) external {
        (bytes32 job, address caller) = (jobs[at % NUM_JOBS], who % 4 == 0 ? stranger : poster);
        bytes memory call = abi.encodeCall(escrow.reclaim, (headers[at % NUM_JOBS], amount % 30e6));
        (uint80 before,,,) = escrow.jobs(job);
        if (!_call("reclaim", call, caller)) return;
        (uint80 left,,,) = escrow.jobs(job);
        reclaimed[job] += before - left;
    }

    function tops(uint256 at, uint80 amount) external {
        (bytes32 job, uint80 more) = (jobs[at % NUM_JOBS], amount % 10e6);
        if (_call("topUp", abi.encodeCall(escrow.topUp, (job, more)), stranger)) deposited[job] += more;
    }

    function deposits(uint256 who, uint96 amount) external {
        _call("deposit", abi.encodeCall(escrow.deposit, (accounts[who % NUM_ACCOUNTS], amount % 10e6)), stranger);
    }

    function withdraws(uint256 who, uint96 amount) external {
        address account = accounts[who % NUM_ACCOUNTS];
        _call("withdraw", abi.encodeCall(escrow.withdraw, (account, amount % 10e6)), account);
    }

    function announces(uint256 at, uint256 who, uint80 amount) external {
        (bytes32 job, address account) = (jobs[at % NUM_JOBS], accounts[who % NUM_ACCOUNTS]);
        _call("announce", abi.encodeCall(escrow.announce, (job, account, amount % 20e6, "")), slasher);
    }

    function burns(uint256 at, uint256 who) external {
        _call("burn", abi.encodeCall(escrow.burn, (jobs[at % NUM_JOBS], accounts[who % NUM_ACCOUNTS])), slasher);
    }

    function drops(uint256 at, uint256 who) external {
        _call("drop", abi.encodeCall(escrow.drop, (jobs[at % NUM_JOBS], accounts[who % NUM_ACCOUNTS])), canceller);
    }

    function waits(uint256 secs) external {
        later(secs % 3 == 0 ? secs % TAIL : secs % 20);
    }

    // ---- what is checked after each call ----

    function growthWithin(bytes32 job, uint80 burst, uint80 rate) external view returns (bool) {
        Growth[] storage all = growth[job];
        for (uint256 from = 0; from < all.length; ++from) {
            uint256 sum;
            for (uint256 to = from; to < all.length; ++to) {
                sum += all[to].amount;
                if (sum > burst + uint256(rate) * (all[to].time - all[from].time) / 1 hours) return false;
            }
        }
        return true;
    }

    /// @dev The best seal, shown to whoever can still be paid.
    function showAll(uint256 at) external {
        bytes32 job = jobs[at];
        for (uint256 k = 0; k < seals[job].length; ++k) {
            this.claimsAll(at, k);
        }
    }

    function header(uint256 at) external view returns (PayEscrow.JobHeader memory) {
        return headers[at];
    }

    function _send(string memory action, bytes memory call) private {
        signedCalls.push(call);
        _call(action, call, stranger);
    }

    function _call(string memory action, bytes memory call, address caller) private returns (bool done) {
        vm.prank(caller);
        (done,) = address(escrow).call(call);
        if (done) ++did[action];
        bytes4 selector = bytes4(call);
        bool mayFall = selector == escrow.quit.selector || selector == escrow.release.selector;
        for (uint256 i = 0; i < NUM_JOBS; ++i) {
            _watch(jobs[i], mayFall);
        }
    }

    function _watch(bytes32 job, bool mayFall) private {
        uint256 grown;
        for (uint256 i = 0; i < NUM_ACCOUNTS; ++i) {
            Seen storage last = seen[job][accounts[i]];
            (uint80 limit, uint80 claimed, uint80 earned,) = escrow.granted(job, accounts[i]);
            if (limit < last.limit && !mayFall) broken = "J7: a limit fell";
            if (claimed < last.claimed || earned < last.earned) broken = "J7: claimed or earned fell";
            if (limit > last.limit) grown += limit - last.limit;
            (last.limit, last.claimed, last.earned) = (limit, claimed, earned);
        }
        if (grown > 0) growth[job].push(Growth(vm.getBlockTimestamp(), grown));
    }
}

/// @dev J1 to J7 of `PayEscrow`, over random histories of `PayHandler`.
contract PayInvariantsTest is Test {
    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    PayHandler internal handler;
    PayEscrow internal escrow;
    address internal token;

    function setUp() public {
        handler = new PayHandler();
        handler.setUp();
        (escrow, token) = handler.system();
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    /// @dev What happens often is listed often.
    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        bytes4[27] memory listed = [
            handler.grants.selector, handler.grants.selector, handler.grants.selector, handler.seal.selector,
            handler.seal.selector, handler.claims.selector, handler.claims.selector, handler.claimsAll.selector,
            handler.bonds.selector, handler.bonds.selector, handler.quits.selector, handler.ends.selector,
            handler.closes.selector, handler.releases.selector, handler.releases.selector, handler.reclaims.selector,
            handler.reclaims.selector, handler.grants.selector, handler.tops.selector, handler.deposits.selector, handler.withdraws.selector, handler.announces.selector,
            handler.burns.selector, handler.drops.selector, handler.waits.selector, handler.replay.selector,
            handler.replay.selector
        ];
        targets = new FuzzSelector[](1);
        targets[0].addr = address(handler);
        targets[0].selectors = new bytes4[](listed.length);
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
            PayEscrow.JobHeader memory it = handler.header(i);
            assertTrue(handler.growthWithin(handler.jobs(i), it.burst, it.rate), "J4");
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
