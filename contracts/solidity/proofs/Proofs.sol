// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {JobEscrow} from "../src/JobEscrow.sol";
import {PayTree} from "../src/PayTree.sol";
import {TestToken} from "../src/TestToken.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

/// @dev Cheats of hevm that halmos knows.
interface Cheats {
    function assume(bool) external;
    function store(address, bytes32, bytes32) external;
    function warp(uint256) external;
    function prank(address) external;
    function addr(uint256) external returns (address);
    function sign(uint256, bytes32) external returns (uint8, bytes32, bytes32);
}

/// @dev What halmos proves of JobEscrow's arithmetic, for all amounts at once: from any state in which
/// J2 holds, a call does what the specification says, and J2 holds again. Where a call
/// may revert, as a signed one whose signature halmos leaves open, that proves nothing.
contract Proofs {
    Cheats internal constant vm = Cheats(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);
    uint256 internal constant COORDINATOR = 0xC00D;
    address internal constant POSTER = address(0xA11CE);
    address internal constant WORKER = address(0x9A1D);
    address internal constant SLASHER = address(0x51A);
    uint256 internal constant NOW = 1_800_000_000;
    uint40 internal constant TAIL = 300;

    struct State {
        uint80 funded;
        uint80 committed;
        uint80 limit;
        uint80 claimed;
        uint80 earned;
        uint80 stake;
        uint96 balance;
    }

    JobEscrow internal escrow;
    JobEscrow.JobHeader internal header;
    bytes32 internal job;

    function setUp() public {
        vm.warp(NOW);
        TestToken token = new TestToken(address(this), type(uint96).max, type(uint256).max);
        escrow = new JobEscrow(IERC20(address(token)), SLASHER, address(0xCA), [uint40(60), 10, 20, TAIL]);
        header = JobEscrow.JobHeader(POSTER, vm.addr(COORDINATOR), 0, 1, 1000, 3600, uint40(NOW), 0);
        job = escrow.jobId(header);
    }

    function check_claim__pays_what_vested_up_to_the_limit(State memory s, uint80 earned, uint80 vested) public {
        _set(s, 0, 0);
        bytes memory seal = _sign(
            keccak256(
                abi.encode(
                    keccak256("Seal(bytes32 job,bytes32 payRoot,bytes32 details)"),
                    job,
                    PayTree.leaf(WORKER, earned, vested),
                    bytes32(0)
                )
            )
        );

        escrow.claim(header, 0, seal, WORKER, earned, vested, 0, new bytes32[](0));

        uint80 claimed = _max(s.claimed, _min(vested, s.limit));
        uint80 shown = _max(s.earned, _min(_max(earned, vested), s.limit));
        (uint80 limit_, uint80 claimed_, uint80 earned_,) = escrow.granted(job, WORKER);
        assert(limit_ == s.limit && claimed_ == claimed && earned_ == shown);
        (uint96 balance_,) = escrow.balances(WORKER);
        assert(balance_ == s.balance + (claimed - s.claimed));
        _holds(s.funded, s.committed);
    }

    function check_quit__gives_back_what_is_not_kept(State memory s, uint80 keep) public {
        _set(s, 0, 0);
        vm.prank(WORKER);
        try escrow.quit(job, WORKER, keep, 0, "") {}
        catch {
            assert(false);
        }

        uint80 limit = _min(s.limit, _max(keep, _max(s.claimed, s.earned)));
        _holds(s.funded, s.committed - (s.limit - limit));
        (uint80 limit_, uint80 claimed_, uint80 earned_, bool ended) = escrow.granted(job, WORKER);
        assert(limit_ == limit && claimed_ == s.claimed && earned_ == s.earned && ended);
    }

    function check_release__frees_stake_and_what_nobody_showed(State memory s, uint40 end) public {
        vm.assume(end != 0 && uint256(end) + TAIL <= NOW);
        _set(s, end, 0);
        address[] memory accounts = new address[](1);
        accounts[0] = WORKER;
        try escrow.release(job, accounts) {}
        catch {
            assert(false);
        }

        uint80 limit = _max(s.claimed, s.earned);
        _holds(s.funded, s.committed - (s.limit - limit));
        (uint80 limit_,,, bool ended) = escrow.granted(job, WORKER);
        (uint80 stake_, uint40 end_,,) = escrow.bonds(job, WORKER);
        (uint96 balance_,) = escrow.balances(WORKER);
        assert(limit_ == limit && !ended && stake_ == 0 && end_ == 0);
        assert(balance_ == s.balance + s.stake);
    }

    function check_release__too_early__changes_nothing(State memory s, uint40 end) public {
        vm.assume(end == 0 || uint256(end) + TAIL > NOW);
        _set(s, end, 0);
        address[] memory accounts = new address[](1);
        accounts[0] = WORKER;
        escrow.release(job, accounts);

        (uint80 limit_,,,) = escrow.granted(job, WORKER);
        (uint80 stake_, uint40 end_,,) = escrow.bonds(job, WORKER);
        assert(limit_ == s.limit && stake_ == s.stake && end_ == end);
        _holds(s.funded, s.committed);
    }

    function check_reclaim__takes_no_committed_money(State memory s, uint80 amount) public {
        _set(s, 0, 0);
        vm.prank(POSTER);
        try escrow.reclaim(header, amount) {}
        catch {
            assert(false);
        }

        uint80 taken = _min(amount, s.funded - s.committed);
        _holds(s.funded - taken, s.committed);
        (uint96 balance_,) = escrow.balances(POSTER);
        assert(balance_ == taken);
    }

    function check_bond__moves_money_to_the_stake(State memory s, uint80 stake) public {
        _set(s, 0, 0);
        vm.prank(WORKER);
        escrow.bond(job, WORKER, stake, 0, "");

        (uint80 stake_,,,) = escrow.bonds(job, WORKER);
        (uint96 balance_,) = escrow.balances(WORKER);
        assert(stake_ == stake && stake > s.stake && balance_ == s.balance - (stake - s.stake));
    }

    function check_burn__takes_what_was_announced_and_no_more(State memory s, uint80 amount) public {
        vm.assume(amount != 0 && amount <= s.stake);
        _set(s, 0, amount);
        vm.prank(SLASHER);
        escrow.burn(job, WORKER);

        (uint80 stake_, uint40 end_,,) = escrow.bonds(job, WORKER);
        (uint96 burned,) = escrow.balances(escrow.BURN());
        assert(stake_ == s.stake - amount && burned == amount && end_ == NOW);
        _holds(s.funded, s.committed);
    }

    /// @dev Burst 1,000, rate one unit a second, last used a second ago: multiplication is not proved.
    function check_grant__grows_within_bucket_and_budget(State memory s, uint80 allowance, uint96 wanted) public {
        vm.assume(allowance <= header.burst);
        _set(s, 0, 0);
        vm.store(address(escrow), _at(job, 4), bytes32((NOW - 1) << 80 | allowance));
        _grant(wanted);

        uint256 bucket = uint256(allowance) + 1 < header.burst ? uint256(allowance) + 1 : header.burst;
        uint256 room = bucket < s.funded - s.committed ? bucket : s.funded - s.committed;
        bool fits = wanted > s.limit && wanted - s.limit <= room;
        {
            (uint80 allowance_, uint40 since_) = escrow.buckets(job);
            assert(allowance_ == (fits ? bucket - (wanted - s.limit) : allowance)); // J4
            assert(since_ == (fits ? NOW : NOW - 1)); // a replay rounds nothing down
        }
        (uint80 limit_, uint80 claimed_, uint80 earned_,) = escrow.granted(job, WORKER);
        assert(limit_ == (fits ? uint80(wanted) : s.limit) && claimed_ == s.claimed && earned_ == s.earned);
        _holds(s.funded, s.committed + (limit_ - s.limit));
    }

    // ---- inside ----

    /// @dev Any state in which J2 holds; the job's other accounts have the rest of `committed`.
    function _set(State memory s, uint40 end, uint80 slash) internal {
        vm.assume(s.claimed <= s.limit && s.earned <= s.limit && s.limit <= s.committed && s.committed <= s.funded);
        vm.assume(s.balance < 2 ** 90); // all tokens there are
        bytes32 account = bytes32(uint256(uint160(WORKER)));
        vm.store(address(escrow), _at(account, 2), bytes32(uint256(s.balance)));
        vm.store(address(escrow), _at(job, 3), bytes32(uint256(1) << 200 | uint256(s.committed) << 80 | s.funded));
        uint256 granted = uint256(s.earned) << 160 | uint256(s.claimed) << 80 | s.limit;
        if (end != 0) granted |= uint256(1) << 240;
        vm.store(address(escrow), _at(account, uint256(_at(job, 5))), bytes32(granted));
        uint256 bond = uint256(slash) << 120 | uint256(end) << 80 | s.stake;
        if (slash != 0) bond |= NOW << 200;
        vm.store(address(escrow), _at(account, uint256(_at(job, 6))), bytes32(bond));
    }

    function _grant(uint96 limit) internal {
        uint256[] memory limits = new uint256[](1);
        limits[0] = uint256(uint160(WORKER)) << 96 | limit;
        bytes32 typehash = keccak256("Grant(bytes32 job,uint256[] limits,uint40 by)");
        bytes32 list = keccak256(abi.encodePacked(limits));
        bytes memory signature = _sign(keccak256(abi.encode(typehash, job, list, NOW)));
        escrow.grant(header, limits, uint40(NOW), signature);
    }

    function _at(bytes32 key, uint256 slot) internal pure returns (bytes32) {
        return keccak256(abi.encode(key, slot));
    }

    /// @dev J2 of the job as it is stored now.
    function _holds(uint80 funded, uint80 committed) internal view {
        (uint80 funded_, uint80 committed_,,) = escrow.jobs(job);
        (uint80 limit, uint80 claimed, uint80 earned,) = escrow.granted(job, WORKER);
        assert(funded_ == funded && committed_ == committed && committed <= funded);
        assert(limit <= committed && claimed <= limit && earned <= limit);
    }

    function _sign(bytes32 structHash) internal returns (bytes memory) {
        bytes32 typehash =
            keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
        bytes32 domain =
            keccak256(abi.encode(typehash, keccak256("Tallystick"), keccak256("2"), block.chainid, address(escrow)));
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(COORDINATOR, keccak256(abi.encodePacked(hex"1901", domain, structHash)));
        return abi.encodePacked(r, s, v);
    }

    function _min(uint80 a, uint80 b) internal pure returns (uint80) {
        return a < b ? a : b;
    }

    function _max(uint80 a, uint80 b) internal pure returns (uint80) {
        return a > b ? a : b;
    }
}
