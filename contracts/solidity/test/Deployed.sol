// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {JobClosing} from "../src/JobClosing.sol";
import {Messages} from "../src/Messages.sol";
import {Parameters} from "../src/Parameters.sol";
import {PayoutVault} from "../src/PayoutVault.sol";
import {SealAnchor} from "../src/SealAnchor.sol";
import {Settlement} from "../src/Settlement.sol";
import {StakeRegistry} from "../src/StakeRegistry.sol";
import {TestToken} from "../src/TestToken.sol";
import {TokenHolder} from "../src/TokenHolder.sol";
import {Test} from "./Harness.sol";
import {Trees} from "./Trees.sol";

/// @dev Exposes library hashes to tests that hold messages in memory.
contract Hashes {
    function jobSpec(Messages.JobSpec calldata message) external pure returns (bytes32) {
        return Messages.hash(message);
    }

    function seal(Messages.Seal calldata message) external pure returns (bytes32) {
        return Messages.hash(message);
    }

    function lease(Messages.LeaseAccept calldata message) external pure returns (bytes32) {
        return Messages.hash(message);
    }
}

/// @dev The whole set of contracts as the deployer makes it, with demo parameters and named parties.
abstract contract Deployed is Test {
    uint256 internal constant POSTER_KEY = 0xA11CE;
    uint256 internal constant COORDINATOR_KEY = 0xC00D;
    uint256 internal constant PROVIDER_KEY = 0x9A1D;
    uint256 internal constant STRANGER_KEY = 0x57A;
    uint96 internal constant CAP = 50e6;
    bytes internal constant HISTORY_CODE =
        hex"3373fffffffffffffffffffffffffffffffffffffffe14604657602036036042575f35600143038111604257611fff81430311604257611fff9006545f5260205ff35b5f5ffd5b5f35611fff60014303065500";
    address internal constant HISTORY = 0x0000F90827F1C53a10cb7A02335B175320002935;

    address internal poster = vm.addr(POSTER_KEY);
    address internal coordinator = vm.addr(COORDINATOR_KEY);
    address internal provider = vm.addr(PROVIDER_KEY);
    address internal stranger = vm.addr(STRANGER_KEY);
    address internal admin = address(0xAD);
    address internal proposer = address(0xB0B);
    address internal disputes = address(0xD15);
    address internal slasher = address(0x51A);
    address internal minter = address(0x417);

    IERC20 internal token;
    Parameters internal parameters;
    JobEscrow internal escrow;
    StakeRegistry internal stakes;
    SealAnchor internal seals;
    PayoutVault internal vault;
    Settlement internal settlement;
    Hashes internal hashes;
    uint256 internal jobNonce;
    uint64[] internal demo;

    function setUp() public virtual {
        vm.warp(1_800_000_000);
        vm.roll(1000);
        hashes = new Hashes();
        demo = demoValues();
        bytes memory args = abi.encode(minter, type(uint96).max, type(uint256).max);
        deploy(IERC20(create("TestToken", args)));
        address[4] memory rich = [poster, provider, coordinator, stranger];
        for (uint256 i = 0; i < rich.length; ++i) {
            give(rich[i], 1_000_000e6);
        }
    }

    function deploy(IERC20 token_) internal {
        token = token_;
        uint256 nonce = vm.getNonce(address(this));
        address place = vm.computeCreateAddress(address(this), nonce + 5);
        parameters = Parameters(create("Parameters", abi.encode(admin, demo)));
        address vault_ = vm.computeCreateAddress(address(this), nonce + 4);
        escrow = JobEscrow(create("JobEscrow", abi.encode(token, place, vault_, parameters)));
        bytes memory args = abi.encode(token, place, escrow, parameters, slasher);
        stakes = StakeRegistry(create("StakeRegistry", args));
        seals = SealAnchor(create("SealAnchor", ""));
        vault = PayoutVault(create("PayoutVault", abi.encode(token, place, escrow)));
        settlement = newSettlement();
        vm.etch(HISTORY, HISTORY_CODE);
    }

    function newSettlement() internal returns (Settlement) {
        Settlement.Contracts memory contracts =
            Settlement.Contracts(token, escrow, stakes, seals, vault, parameters);
        return Settlement(create("Settlement", abi.encode(contracts, proposer, disputes)));
    }

    function demoValues() internal pure returns (uint64[] memory values) {
        uint64[20] memory listed = [
            uint64(5), 2, 1e15, 5, 10, 40, 60, 20, 60, 20, 10_000, 2_000, 5_000, 20, 50_000, 100_000, 200_000,
            1_250_000, 4, 5
        ];
        values = new uint64[](listed.length);
        for (uint256 i = 0; i < listed.length; ++i) {
            values[i] = listed[i];
        }
    }

    function give(address account, uint96 amount) internal virtual {
        vm.prank(minter);
        TestToken(address(token)).faucet(account, amount);
        vm.startPrank(account);
        token.approve(address(escrow), type(uint256).max);
        token.approve(address(stakes), type(uint256).max);
        vm.stopPrank();
    }

    function later(uint256 secs) internal {
        vm.warp(vm.getBlockTimestamp() + secs);
    }

    function newHeader() internal returns (Messages.JobHeader memory) {
        return Messages.JobHeader({
            poster: poster,
            coordinator: coordinator,
            specHash: keccak256("spec"),
            epochCap: CAP,
            deadline: uint64(vm.getBlockTimestamp() + 1 days),
            nonce: uint256(keccak256(abi.encode(++jobNonce))) // calldata at its dearest
        });
    }

    function idOf(Messages.JobHeader memory header) internal pure returns (bytes32) {
        return keccak256(abi.encode(header));
    }

    function openJob(uint96 amount) internal returns (Messages.JobHeader memory header, bytes32 job) {
        header = newHeader();
        job = idOf(header);
        vm.prank(poster);
        escrow.open(header, amount);
    }

    function sealOf(bytes32 job, uint64 step, uint96 earned, uint96 vested)
        internal
        pure
        returns (Messages.Seal memory)
    {
        return Messages.Seal({
            job: job,
            step: step,
            previous: keccak256("previous"),
            messagesRoot: keccak256("messages"),
            gradientNorm: 12345,
            payRoot: keccak256("pay"),
            earned: earned,
            vested: vested,
            last: false
        });
    }

    function lastSeal(bytes32 job, uint64 step, uint96 vested) internal pure returns (Messages.Seal memory seal) {
        seal = sealOf(job, step, vested, vested);
        seal.last = true;
    }

    function sign(bytes32 structHash, uint256 key) internal view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digestOf(structHash));
        return abi.encodePacked(r, s, v);
    }

    function digestOf(bytes32 structHash) internal view returns (bytes32) {
        return keccak256(abi.encodePacked(hex"1901", settlement.domainSeparator(), structHash));
    }

    function signSeal(Messages.Seal memory seal) internal view returns (bytes memory) {
        return sign(hashes.seal(seal), COORDINATOR_KEY);
    }

    function noLeaf() internal pure returns (JobClosing.FirstPayLeaf memory leaf) {}

    function noPermit() internal pure returns (TokenHolder.Permit memory permit) {}

    /// @dev First permit of a wallet for the escrow.
    function permitOf(uint256 key, uint256 value) internal view returns (TokenHolder.Permit memory) {
        uint256 deadline = block.timestamp + 1 hours;
        bytes32 typehash =
            keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
        bytes32 structHash = keccak256(abi.encode(typehash, vm.addr(key), address(escrow), value, 0, deadline));
        bytes32 separator = TestToken(address(token)).DOMAIN_SEPARATOR();
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, keccak256(abi.encodePacked(hex"1901", separator, structHash)));
        return TokenHolder.Permit(value, deadline, v, r, s);
    }

    function statement(Messages.JobHeader memory header, uint64 step, uint96 vested)
        internal
        view
        returns (Settlement.Statement memory)
    {
        return stated(header, sealOf(idOf(header), step, vested + 1e6, vested), COORDINATOR_KEY);
    }

    function stated(Messages.JobHeader memory header, Messages.Seal memory seal, uint256 key)
        internal
        view
        returns (Settlement.Statement memory)
    {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digestOf(hashes.seal(seal)));
        return Settlement.Statement(header, seal, Messages.Signature(r, s, v));
    }

    function closedStatement(Messages.JobHeader memory header) internal pure returns (Settlement.Statement memory it) {
        it.header = header;
    }

    function one(Settlement.Statement memory it) internal pure returns (Settlement.Statement[] memory all) {
        all = new Settlement.Statement[](1);
        all[0] = it;
    }

    function onePayout(address account, uint96 cumulative) internal pure returns (Trees.Payout[] memory payouts) {
        payouts = new Trees.Payout[](1);
        payouts[0] = Trees.Payout(account, keccak256("jobs"), cumulative);
    }

    /// @dev Post an epoch that debits `header` up to `vested` and pays all ever funded to `account`.
    function post(uint48 epoch, Messages.JobHeader memory header, uint96 vested, address account, uint96 total)
        internal
        returns (Trees.Payout[] memory payouts)
    {
        payouts = onePayout(account, total);
        (bytes32 root, uint96 sum) = Trees.settlementRoot(payouts);
        Settlement.Statement[] memory statements = one(statement(header, epoch, vested));
        vm.prank(proposer);
        settlement.propose(epoch, root, sum, statements);
    }

    function claim(Trees.Payout[] memory payouts, uint256 index) internal {
        (uint256 sides, bytes memory path) = Trees.settlementPath(payouts, index);
        Trees.Payout memory it = payouts[index];
        settlement.claim(it.account, it.cumulative, it.jobsRoot, sides, path);
    }

    function lease(bytes32 job, address account, uint96 stake_, bytes32 session)
        internal
        pure
        returns (Messages.LeaseAccept memory)
    {
        return Messages.LeaseAccept(job, account, session, 1000e6, stake_, keccak256("details"));
    }
}
