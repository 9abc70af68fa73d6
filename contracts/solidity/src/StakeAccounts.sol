// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {JobClosing} from "./JobClosing.sol";
import {JobEscrow} from "./JobEscrow.sol";
import {Messages} from "./Messages.sol";
import {Parameters} from "./Parameters.sol";
import {SignedMessages} from "./SignedMessages.sol";
import {TokenHolder} from "./TokenHolder.sol";

/// @title Stakes and the part of them that backs each lease.
/// @notice An account's stake is active (of it, some reserved for jobs) or unbonding. A signed
/// LeaseAccept reserves stake for its job until the job is over; a coordinator's bond is the same
/// message by its wallet. While a slash case is open the account neither withdraws nor reserves nor
/// releases. Slashing is in `StakeRegistry`.
/// @dev I1 balance >= sum(active + unbonding). I11 no withdrawal before the delay or in an open case.
abstract contract StakeAccounts is SignedMessages, TokenHolder {
    using SafeERC20 for IERC20;

    struct Account {
        uint96 active; // includes reserved
        uint96 reserved;
        uint64 openCases;
        uint96 unbonding;
        uint40 withdrawableAt;
    }

    /// @dev The account has less free stake than this takes.
    error NotEnoughFree(address account, uint256 wanted, uint256 free);
    /// @dev Stake leaves later.
    error StillUnbonding(uint40 withdrawableAt);
    /// @dev The account's stake is frozen by open cases.
    error CaseOpen(address account, uint64 openCases);
    /// @dev This LeaseAccept reserved its stake before.
    error AlreadyReserved(bytes32 lease);
    /// @dev Stake is reserved for open jobs only.
    error JobNotOpen(bytes32 job);
    /// @dev The job still needs its reservations.
    error JobNotOver(bytes32 job);
    /// @dev The account has nothing reserved for the job.
    error NothingReserved(bytes32 job, address account);

    event Staked(address indexed account, address indexed from, uint96 amount);
    event UnbondRequested(address indexed account, uint96 amount, uint40 withdrawableAt);
    event Withdrawn(address indexed account, uint96 amount);
    event Reserved(bytes32 indexed job, address indexed account, bytes32 indexed sessionKey, uint96 amount);
    event ReservationReleased(bytes32 indexed job, address indexed account, uint96 amount);

    address public immutable settlement;
    JobEscrow public immutable escrow;
    Parameters public immutable parameters;

    /// @notice Active stake of all accounts: what an opening's list of outside auditors sums to.
    uint96 public totalStaked;

    mapping(address account => Account) internal _accounts;
    /// @notice Stake of an account that backs a job.
    mapping(bytes32 job => mapping(address account => uint96)) public reservation;
    /// @notice Struct hashes of LeaseAccepts whose stake was reserved, so that none counts twice.
    mapping(bytes32 lease => bool) public isReserved;

    constructor(IERC20 token_, address settlement_, JobEscrow escrow_, Parameters parameters_)
        SignedMessages(settlement_)
        TokenHolder(token_)
    {
        settlement = settlement_;
        escrow = escrow_;
        parameters = parameters_;
    }

    /// @notice Stake the caller's tokens (allowance needed).
    function stake(uint96 amount) external nonReentrant {
        _stake(msg.sender, amount);
    }

    /// @notice Stake the caller's tokens with a permit; one that fails is ignored, the allowance decides.
    function stakeWithPermit(uint96 amount, Permit calldata permit) external nonReentrant {
        _permit(msg.sender, permit);
        _stake(msg.sender, amount);
    }

    /// @notice Ask for free stake back; what is already unbonding waits anew with it.
    function requestUnbond(uint96 amount) external {
        Account storage account = _accounts[msg.sender];
        _takeFree(account, msg.sender, amount);
        account.active -= amount;
        totalStaked -= amount;
        account.unbonding += amount;
        account.withdrawableAt = uint40(block.timestamp + parameters.value(Parameters.Key.UnbondingDelay));
        emit UnbondRequested(msg.sender, amount, account.withdrawableAt);
    }

    /// @notice Get unbonded stake back after the delay, unless a case is open (I11).
    function withdraw() external returns (uint96 amount) {
        Account storage account = _accounts[msg.sender];
        _requireNoCase(account, msg.sender);
        amount = account.unbonding;
        if (amount == 0) revert ZeroAmount();
        if (block.timestamp < account.withdrawableAt) revert StillUnbonding(account.withdrawableAt);
        account.unbonding = 0;
        emit Withdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    /// @notice Reserve the stake that a signed LeaseAccept promises. Open to anyone, once per message.
    function reserve(Messages.LeaseAccept calldata lease, bytes calldata signature) external {
        bytes32 id = Messages.hash(lease);
        address signer = _signer(id, signature);
        if (signer != lease.account) revert WrongSigner(signer, lease.account);
        if (isReserved[id]) revert AlreadyReserved(id);
        if (escrow.stateOf(lease.job) != JobClosing.JobState.Open) revert JobNotOpen(lease.job);
        Account storage account = _accounts[lease.account];
        _requireNoCase(account, lease.account);
        _takeFree(account, lease.account, lease.stake);
        isReserved[id] = true;
        account.reserved += lease.stake;
        reservation[lease.job][lease.account] += lease.stake;
        emit Reserved(lease.job, lease.account, lease.sessionKey, lease.stake);
    }

    /// @notice Free an account's stake from a job that is closed and past its refund delay. Open to anyone.
    function releaseReservation(bytes32 job, address account) external {
        Account storage account_ = _accounts[account];
        uint96 amount = reservation[job][account];
        if (amount == 0) revert NothingReserved(job, account);
        if (!escrow.isOver(job)) revert JobNotOver(job);
        _requireNoCase(account_, account);
        reservation[job][account] = 0;
        account_.reserved -= amount;
        emit ReservationReleased(job, account, amount);
    }

    /// @notice An account's stake: active (of it reserved), unbonding and from when, open cases.
    function accountOf(address account) external view returns (Account memory) {
        return _accounts[account];
    }

    function _stake(address account, uint96 amount) private {
        if (amount == 0) revert ZeroAmount();
        _accounts[account].active += amount;
        totalStaked += amount;
        emit Staked(account, account, amount);
        _receive(account, amount);
    }

    function _takeFree(Account storage account, address owner, uint96 amount) private view {
        if (amount == 0) revert ZeroAmount();
        uint96 free = account.active - account.reserved;
        if (amount > free) revert NotEnoughFree(owner, amount, free);
    }

    function _requireNoCase(Account storage account, address owner) private view {
        if (account.openCases != 0) revert CaseOpen(owner, account.openCases);
    }
}
