// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IRejections} from "./IRejections.sol";
import {JobClosing} from "./JobClosing.sol";
import {Messages} from "./Messages.sol";
import {Parameters} from "./Parameters.sol";
import {TokenHolder} from "./TokenHolder.sol";

/// @title Budgets of jobs, from deposit to debit and refund.
/// @notice A job's id binds its poster, coordinator, spec, cap per epoch and deadline, so only its
/// counters are stored. Debits are counters until their epoch is final; then tokens leave for the vault.
/// How a job closes is in `JobClosing`.
/// @dev I1 balance >= sum(deposited - debited) + debits not final + final not released.
/// I2 deposits = debits + refunds + remaining, per job. I9 a rejected epoch's debits come back exactly.
contract JobEscrow is JobClosing, TokenHolder {
    using SafeERC20 for IERC20;

    /// @dev Somebody opened a job with this id before.
    error JobExists(bytes32 job);
    /// @dev No job with this id was opened.
    error UnknownJob(bytes32 job);
    /// @dev `open` spends the caller's tokens, so the caller must be the poster.
    error NotPoster(address caller, address poster);
    /// @dev The deadline lies in the past.
    error DeadlinePassed(uint64 deadline);
    /// @dev The deposits of one job would exceed what it can hold.
    error BudgetTooLarge(uint256 deposited, uint256 max);
    /// @dev Only Settlement books debits.
    error NotSettlement(address caller);
    /// @dev Only Settlement and its vault move final money.
    error NotSettlementOrVault(address caller);
    /// @dev The seal vests less than what was debited before.
    error VestedBelowDebited(bytes32 job, uint96 vested, uint96 debited);
    /// @dev The seal vests more than the epoch cap lets through; name an earlier seal.
    error EpochCapExceeded(bytes32 job, uint96 amount, uint96 cap);
    /// @dev The budget does not cover what the seal vests.
    error Overdrawn(bytes32 job, uint96 vested, uint96 deposited);
    /// @dev One debit per job and epoch.
    error AlreadyDebited(bytes32 job, uint48 epoch);
    /// @dev The job has no debit of that epoch that could be restored.
    error NothingToRestore(bytes32 job, uint48 epoch);
    /// @dev Refunds start later.
    error RefundNotDue(bytes32 job, uint40 refundableAt);
    /// @dev Everything is earned or refunded.
    error NothingToRefund(bytes32 job);

    event JobOpened(bytes32 indexed job, address indexed poster, uint96 amount);
    event ToppedUp(bytes32 indexed job, address indexed from, uint96 amount);
    event Debited(bytes32 indexed job, uint48 indexed epoch, uint96 amount);
    event Restored(bytes32 indexed job, uint48 indexed epoch, uint96 amount);
    event Released(uint96 amount, uint96 total);
    event Refunded(bytes32 indexed job, address indexed poster, uint96 amount);

    /// @notice Most that a job can hold, in base units: it shares a word with what was debited.
    uint256 public constant MAX_BUDGET = type(uint80).max;

    address public immutable vault;

    /// @notice Base units that final epochs have moved to the vault so far.
    uint96 public released;

    constructor(IERC20 token_, address settlement_, address vault_, Parameters parameters_)
        JobClosing(settlement_, parameters_)
        TokenHolder(token_)
    {
        vault = vault_;
    }

    modifier onlySettlement() {
        if (msg.sender != settlement) revert NotSettlement(msg.sender);
        _;
    }

    /// @notice Open a job with the caller's own tokens (allowance needed).
    function open(Messages.JobHeader calldata header, uint96 amount) external nonReentrant returns (bytes32 job) {
        if (msg.sender != header.poster) revert NotPoster(msg.sender, header.poster);
        job = Messages.jobId(header);
        _open(job, header.poster, header.deadline, amount);
    }

    /// @notice Open a job that its poster signed; anyone may pay the gas.
    /// @dev The amount is the signed budget; a permit that fails is ignored, the allowance decides.
    function openWithPermit(Messages.JobSpec calldata spec, bytes calldata jobSignature, Permit calldata permit)
        external
        nonReentrant
        returns (bytes32 job)
    {
        Messages.JobHeader memory header = Messages.headerOf(spec);
        address signer = _signer(header.specHash, jobSignature);
        if (signer != spec.poster) revert WrongSigner(signer, spec.poster);
        _permit(spec.poster, permit);
        job = Messages.jobIdOf(header);
        _open(job, spec.poster, spec.deadline, spec.budget);
    }

    /// @notice Add to a job's budget; what is not earned goes to the poster in the end.
    function topUp(bytes32 job, uint96 amount) external nonReentrant {
        if (stateOf(job) == JobState.None) revert UnknownJob(job);
        _deposit(job, amount);
        emit ToppedUp(job, msg.sender, amount);
        _receive(msg.sender, amount);
    }

    /// @notice Book what `job` owes in `epoch`; the tokens stay here until the epoch is final.
    /// @param vested What the coordinator's seal vests in total, or `Messages.WHATEVER_IS_DUE`.
    /// @param cap Most that the job pays in one epoch.
    /// @param newestRejected Newest rejected epoch; a debit of a rejected epoch is restored first (I9).
    function debit(bytes32 job, uint96 vested, uint96 cap, uint48 epoch, uint48 newestRejected)
        external
        onlySettlement
        returns (uint96 amount)
    {
        Job storage it = _jobs[job];
        (uint80 deposited, uint80 debited, uint56 last, uint32 lastEpoch, uint8 closing) =
            (it.deposited, it.debited, it.lastDebit, it.lastEpoch, it.closing);
        if (lastEpoch == epoch) revert AlreadyDebited(job, epoch);
        if (lastEpoch <= newestRejected && last != 0 && IRejections(settlement).isRejected(lastEpoch)) {
            emit Restored(job, lastEpoch, last);
            debited -= last;
        }
        if (closing != 0 || vested == Messages.WHATEVER_IS_DUE) {
            vested = _closedTarget(job, vested, deposited, debited, cap);
        }
        if (vested > deposited) revert Overdrawn(job, vested, deposited);
        if (vested < debited) revert VestedBelowDebited(job, vested, debited);
        unchecked {
            amount = vested - debited; // vested >= debited, checked above
        }
        if (amount > cap) revert EpochCapExceeded(job, amount, cap);
        // Casts: vested <= deposited; amount <= cap <= the hard bound of MaxEpochCap; epochs count up.
        (it.debited, it.lastDebit, it.lastEpoch) = (uint80(vested), uint56(amount), uint32(epoch));
        emit Debited(job, epoch, amount);
    }

    /// @notice Take back the debit of a rejected epoch, exactly (I9). Twice is refused.
    function restore(bytes32 job, uint48 epoch) external onlySettlement {
        Job storage it = _jobs[job];
        uint56 amount = it.lastDebit;
        if (it.lastEpoch != epoch || amount == 0) revert NothingToRestore(job, epoch);
        it.debited -= amount;
        it.lastDebit = 0;
        emit Restored(job, epoch, amount);
    }

    /// @notice Move the tokens of final epochs to the vault, up to `total` ever.
    function release(uint96 total) external {
        if (msg.sender != settlement && msg.sender != vault) revert NotSettlementOrVault(msg.sender);
        uint96 amount = total - released;
        if (amount == 0) return;
        released = total;
        emit Released(amount, total);
        token.safeTransfer(vault, amount);
    }

    /// @notice Pay the poster what was not earned, once the refund delay after the close is over.
    /// Open to anyone. What is earned and not debited yet stays for settlement.
    function refund(bytes32 job) external returns (uint96 amount) {
        if (stateOf(job) != JobState.Closed) revert NotClosed(job);
        Closing storage closing = _closing[job];
        if (block.timestamp < closing.refundableAt) revert RefundNotDue(job, closing.refundableAt);
        (uint80 deposited, uint96 kept) = (_jobs[job].deposited, _jobs[job].debited);
        if (kept < closing.earned) kept = closing.earned;
        if (kept >= deposited) revert NothingToRefund(job);
        amount = deposited - kept;
        _jobs[job].deposited = uint80(kept);
        emit Refunded(job, closing.poster, amount);
        token.safeTransfer(closing.poster, amount);
    }

    function _open(bytes32 job, address poster, uint64 deadline, uint96 amount) private {
        if (stateOf(job) != JobState.None) revert JobExists(job);
        if (deadline <= block.timestamp) revert DeadlinePassed(deadline);
        _deposit(job, amount);
        emit JobOpened(job, poster, amount);
        _receive(poster, amount);
    }

    function _deposit(bytes32 job, uint96 amount) private {
        if (amount == 0) revert ZeroAmount();
        uint256 deposited = uint256(_jobs[job].deposited) + amount;
        if (deposited > MAX_BUDGET) revert BudgetTooLarge(deposited, MAX_BUDGET);
        _jobs[job].deposited = uint80(deposited);
    }

    /// @dev After the response window the closing decides: a seal vests at most what is due, and
    /// without a seal what is due is taken in pieces of the epoch cap.
    function _closedTarget(bytes32 job, uint96 vested, uint96 deposited, uint96 debited, uint96 cap)
        private
        view
        returns (uint96)
    {
        if (stateOf(job) != JobState.Closed) {
            if (vested == Messages.WHATEVER_IS_DUE) revert NotClosed(job);
            return vested;
        }
        uint96 due = _closing[job].due;
        if (due > deposited) due = deposited;
        if (due < debited) due = debited;
        if (vested != Messages.WHATEVER_IS_DUE) return vested < due ? vested : due;
        return due - debited > cap ? debited + cap : due;
    }
}
