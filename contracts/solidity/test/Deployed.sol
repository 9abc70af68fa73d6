// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Parameters} from "../src/Parameters.sol";
import {SealAnchor} from "../src/SealAnchor.sol";
import {TestToken} from "../src/TestToken.sol";
import {Test} from "./Harness.sol";

/// @dev All contracts as deployed, named parties, and what each of them signs.
abstract contract Deployed is Test {
    struct Leaf {
        address account;
        uint80 earned;
        uint80 vested;
    }

    uint256 internal constant POSTER = 0xA11CE;
    uint256 internal constant COORDINATOR = 0xC00D;
    uint256 internal constant WORKER = 0x9A1D;
    uint256 internal constant FRIEND = 0xF1;
    uint256 internal constant STRANGER = 0x57A;
    uint40 internal constant MARGIN = 60;
    uint40 internal constant ANNOUNCE = 10;
    uint40 internal constant EXECUTE = 20;
    uint40 internal constant TAIL = 300;
    /// @dev The system contract of EIP-2935.
    bytes internal constant HISTORY_CODE =
        hex"3373fffffffffffffffffffffffffffffffffffffffe14604657602036036042575f35600143038111604257611fff81430311604257611fff9006545f5260205ff35b5f5ffd5b5f35611fff60014303065500";
    address internal constant HISTORY = 0x0000F90827F1C53a10cb7A02335B175320002935;
    bytes32 internal constant DETAILS = keccak256("details");

    address internal poster = vm.addr(POSTER);
    address internal coordinator = vm.addr(COORDINATOR);
    address internal worker = vm.addr(WORKER);
    address internal friend = vm.addr(FRIEND);
    address internal stranger = vm.addr(STRANGER);
    address internal slasher = address(0x51A);
    address internal canceller = address(0xCA);
    address internal minter = address(0x417);
    address internal admin = address(0xAD);

    IERC20 internal token;
    JobEscrow internal escrow;
    Parameters internal parameters;
    SealAnchor internal seals;
    uint256 internal nonce;

    function setUp() public virtual {
        vm.warp(1_800_000_000);
        vm.roll(1000);
        vm.etch(HISTORY, HISTORY_CODE);
        token = IERC20(create("TestToken", abi.encode(minter, type(uint96).max, type(uint256).max)));
        parameters = Parameters(create("Parameters", abi.encode(admin, demoValues())));
        seals = SealAnchor(create("SealAnchor", ""));
        escrow = escrowOf(token);
        address[5] memory rich = [poster, worker, friend, stranger, coordinator];
        for (uint256 i = 0; i < rich.length; ++i) {
            give(rich[i], 1_000_000e6);
        }
    }

    function escrowOf(IERC20 token_) internal returns (JobEscrow) {
        uint40[4] memory times = [MARGIN, ANNOUNCE, EXECUTE, TAIL];
        return JobEscrow(create("JobEscrow", abi.encode(token_, slasher, canceller, times)));
    }

    function demoValues() internal pure returns (uint64[7] memory) {
        return [uint64(20), 50_000, 100_000, 200_000, 1_250_000, 4, 5];
    }

    function give(address account, uint96 amount) internal {
        vm.prank(minter);
        TestToken(address(token)).faucet(account, amount);
        vm.prank(account);
        token.approve(address(escrow), type(uint256).max);
    }

    /// @dev Free money of `account` in the escrow.
    function fund(address account, uint96 amount) internal {
        vm.prank(stranger);
        escrow.deposit(account, amount);
    }

    function later(uint256 secs) internal {
        vm.warp(vm.getBlockTimestamp() + secs);
    }

    function soon() internal view returns (uint40) {
        return uint40(vm.getBlockTimestamp() + MARGIN);
    }

    // ---- what is signed ----

    function domainSeparator() internal view returns (bytes32) {
        bytes32 typehash =
            keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
        return keccak256(abi.encode(typehash, keccak256("Tallystick"), keccak256("2"), block.chainid, escrow));
    }

    function sign(bytes32 structHash, uint256 key) internal view returns (bytes memory) {
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", domainSeparator(), structHash));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    function newHeader(uint80 budget, uint80 burst, uint80 rate) internal returns (JobEscrow.JobHeader memory) {
        return JobEscrow.JobHeader({
            poster: poster,
            coordinator: coordinator,
            specHash: keccak256("spec"),
            budget: budget,
            burst: burst,
            rate: rate,
            openBy: soon(),
            salt: uint256(keccak256(abi.encode(++nonce))) // calldata at its dearest
        });
    }

    function idOf(JobEscrow.JobHeader memory header) internal pure returns (bytes32) {
        bytes32 typehash = keccak256(
            "JobHeader(address poster,address coordinator,bytes32 specHash,uint80 budget,uint80 burst,uint80 rate,uint40 openBy,uint256 salt)"
        );
        return keccak256(abi.encode(typehash, header));
    }

    function grantHash(bytes32 job, uint256[] memory limits, uint40 by) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("Grant(bytes32 job,uint256[] limits,uint40 by)");
        return keccak256(abi.encode(typehash, job, keccak256(abi.encodePacked(limits)), by));
    }

    function bondHash(bytes32 job, address account, uint80 stake, uint40 by) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("Bond(bytes32 job,address account,uint80 stake,uint40 by)");
        return keccak256(abi.encode(typehash, job, account, stake, by));
    }

    function quitHash(bytes32 job, address account, uint80 keep, uint40 by) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("Quit(bytes32 job,address account,uint80 keep,uint40 by)");
        return keccak256(abi.encode(typehash, job, account, keep, by));
    }

    function endHash(bytes32 job, address[] memory accounts, uint40 by) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("End(bytes32 job,address[] accounts,uint40 by)");
        return keccak256(abi.encode(typehash, job, keccak256(abi.encodePacked(accounts)), by));
    }

    function closeHash(bytes32 job, uint40 by) internal pure returns (bytes32) {
        return keccak256(abi.encode(keccak256("Close(bytes32 job,uint40 by)"), job, by));
    }

    function sealHash(bytes32 job, bytes32 root) internal pure returns (bytes32) {
        return keccak256(abi.encode(keccak256("Seal(bytes32 job,bytes32 payRoot,bytes32 details)"), job, root, DETAILS));
    }

    function withdrawHash(address account, uint96 amount, uint96 fee, uint32 number, uint40 by)
        internal
        pure
        returns (bytes32)
    {
        bytes32 typehash = keccak256("Withdraw(address account,uint96 amount,uint96 fee,uint32 nonce,uint40 by)");
        return keccak256(abi.encode(typehash, account, amount, fee, number, by));
    }

    // ---- the pay tree, written a second time ----

    function one(address account, uint80 earned, uint80 vested) internal pure returns (Leaf[] memory leaves) {
        leaves = new Leaf[](1);
        leaves[0] = Leaf(account, earned, vested);
    }

    function nodesOf(Leaf[] memory leaves) internal pure returns (bytes32[] memory nodes) {
        nodes = new bytes32[](leaves.length);
        for (uint256 i = 0; i < leaves.length; ++i) {
            nodes[i] = keccak256(abi.encodePacked(hex"08", leaves[i].account, leaves[i].earned, leaves[i].vested));
        }
    }

    /// @dev Root above `nodes`, and the path of the subtree of 2^`height` leaves that holds leaf `index`.
    function pathOf(bytes32[] memory nodes, uint256 index, uint256 height)
        internal
        pure
        returns (bytes32 root, uint256 sides, bytes32[] memory path)
    {
        path = new bytes32[](0);
        for (uint256 level = 0; nodes.length > 1; ++level) {
            uint256 other = index ^ 1;
            if (level >= height && other < nodes.length) {
                if (other < index) sides |= 1 << path.length;
                path = _with(path, nodes[other]);
            }
            bytes32[] memory above = new bytes32[]((nodes.length + 1) / 2);
            for (uint256 i = 0; i < above.length; ++i) {
                above[i] = 2 * i + 1 == nodes.length
                    ? nodes[2 * i]
                    : keccak256(abi.encodePacked(hex"06", nodes[2 * i], nodes[2 * i + 1]));
            }
            (nodes, index) = (above, index / 2);
        }
        root = nodes[0];
    }

    function _with(bytes32[] memory list, bytes32 last) private pure returns (bytes32[] memory longer) {
        longer = new bytes32[](list.length + 1);
        for (uint256 i = 0; i < list.length; ++i) {
            longer[i] = list[i];
        }
        longer[list.length] = last;
    }

    function packed(Leaf[] memory leaves, uint256 from, uint256 to) internal pure returns (bytes memory bytes_) {
        for (uint256 i = from; i < to; ++i) {
            bytes_ = abi.encodePacked(bytes_, leaves[i].account, leaves[i].earned, leaves[i].vested);
        }
    }

    // ---- what parties do ----

    function openJob(uint80 budget, uint80 burst, uint80 rate)
        internal
        returns (JobEscrow.JobHeader memory header, bytes32 job)
    {
        header = newHeader(budget, burst, rate);
        job = idOf(header);
        vm.prank(poster);
        escrow.open(header, "");
    }

    function asking(address account, uint256 limit) internal pure returns (uint256[] memory limits) {
        limits = new uint256[](1);
        limits[0] = (uint256(uint160(account)) << 96) | limit;
    }

    function grant(JobEscrow.JobHeader memory header, uint256[] memory limits) internal {
        uint40 by = soon();
        escrow.grant(header, limits, by, sign(grantHash(idOf(header), limits, by), COORDINATOR));
    }

    function bond(bytes32 job, uint256 key, uint80 stake) internal {
        uint40 by = soon();
        escrow.bond(job, vm.addr(key), stake, by, sign(bondHash(job, vm.addr(key), stake, by), key));
    }

    function quit(bytes32 job, uint256 key, uint80 keep) internal {
        uint40 by = soon();
        escrow.quit(job, vm.addr(key), keep, by, sign(quitHash(job, vm.addr(key), keep, by), key));
    }

    function end(JobEscrow.JobHeader memory header, address account) internal {
        uint40 by = soon();
        address[] memory accounts = only(account);
        escrow.end(header, accounts, by, sign(endHash(idOf(header), accounts, by), COORDINATOR));
    }

    function close(JobEscrow.JobHeader memory header) internal {
        vm.prank(poster);
        escrow.close(header, 0, "");
    }

    function release(bytes32 job, address account) internal {
        escrow.release(job, only(account));
    }

    function claim(JobEscrow.JobHeader memory header, Leaf[] memory leaves, uint256 index, uint256 key) internal {
        (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), index, 0);
        bytes memory signature = sign(sealHash(idOf(header), root), key);
        Leaf memory it = leaves[index];
        escrow.claim(header, DETAILS, signature, it.account, it.earned, it.vested, sides, path);
    }

    function pay(JobEscrow.JobHeader memory header, address account, uint80 earned, uint80 vested) internal {
        claim(header, one(account, earned, vested), 0, COORDINATOR);
    }

    function only(address account) internal pure returns (address[] memory accounts) {
        accounts = new address[](1);
        accounts[0] = account;
    }

    // ---- what is seen ----

    function free(address account) internal view returns (uint96 amount) {
        (amount,) = escrow.balances(account);
    }

    function committed(bytes32 job) internal view returns (uint80 amount) {
        (, amount,,) = escrow.jobs(job);
    }

    function limitOf(bytes32 job, address account) internal view returns (uint80 amount) {
        (amount,,,) = escrow.granted(job, account);
    }

    function stakeOf(bytes32 job, address account) internal view returns (uint80 amount) {
        (amount,,,) = escrow.bonds(job, account);
    }
}
