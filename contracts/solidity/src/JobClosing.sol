// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {Messages} from "./Messages.sol";
import {Parameters} from "./Parameters.sol";
import {SignedMessages} from "./SignedMessages.sol";
import {SumTree} from "./SumTree.sol";

/// @title How a job ends: which seal counts, what it leaves due, and when the rest goes back.
/// @notice Three ways in. A `last` seal: at any time. Past the job's deadline: by any seal, or with
/// none. Silence: the newest known seal is shown (or, by the poster, that there is none), and nobody
/// shows a later one for `SilenceLimit`; a later seal in that time keeps the job open. In the
/// response window that follows, a better seal replaces the shown one: of two seals the greater
/// earned total counts, then the later step. Then the job is closed: due to settlement is what a
/// `last` seal vested, or what was earned and not frozen; the poster gets the budget less what was
/// earned, `RefundDelay` after the close.
/// @dev A silence close must show a seal at least as late as any shown before, and comes
/// `SilenceLimit` after that one at the earliest, so old seals cannot be used to pester a live job.
abstract contract JobClosing is SignedMessages {
    enum JobState {
        None,
        Open,
        Closing,
        Closed
    }

    /// @dev One word, so that opening and debiting a job touch a single slot. Nothing of the header is
    /// stored: the id binds it, and who needs it shows it again.
    struct Job {
        uint80 deposited; // all deposits less refunds; zero: unknown job
        uint80 debited; // in total, including the debit below
        uint56 lastDebit; // of lastEpoch; 0 after it was restored
        uint32 lastEpoch;
        uint8 closing; // 1 once a close was requested
    }

    struct Closing {
        uint64 seals; // step of the shown seal + 1; 0: none was shown
        uint96 earned;
        uint40 endsAt;
        uint40 refundableAt;
        bool silence; // a later seal in time keeps the job open
        uint96 due;
        address poster; // from the header that was shown; the refund is his
        uint64 shownSeals; // latest step + 1 that kept the job open
        uint40 shownAt;
        uint40 respondFrom; // from here on a later seal replaces, it no longer keeps the job open
    }

    /// @notice The leftmost leaf of a seal's pay tree with its path (56 bytes a level, all siblings on
    /// the right). The reserved account `frozen` sorts first, so this leaf is its, or there is none.
    struct FirstPayLeaf {
        address account;
        uint96 earned;
        uint96 vested;
        bytes path;
    }

    /// @dev The job is not open.
    error NotOpen(bytes32 job);
    /// @dev The job is not closing, or its response window is over.
    error NotClosing(bytes32 job);
    /// @dev The job is not closed yet.
    error NotClosed(bytes32 job);
    /// @dev The leaf and its path do not lead to the seal's pay root and totals.
    error WrongPayLeaf();
    /// @dev A later seal, or one shown less than `SilenceLimit` ago, says the job is alive.
    error NotSilent(bytes32 job, uint64 shownSeals, uint40 shownAt);
    /// @dev The seal that was shown before counts more.
    error NotBetter(bytes32 job, uint96 earned, uint64 step);
    /// @dev Before the deadline only the poster can say that a job has no seal.
    error PosterOnly(address caller, address poster);

    /// @dev A debit or an earlier answer shows that the job has seals; close it by one.
    error HasSeals(bytes32 job);

    event CloseRequested(
        bytes32 indexed job, uint64 seals, uint96 earned, uint96 due, bool silence, uint40 endsAt, uint40 refundableAt
    );
    event KeptOpen(bytes32 indexed job, uint64 seals);

    /// @notice Pay-tree account that holds earned pay under dispute.
    address public constant FROZEN = address(1);

    address public immutable settlement;
    Parameters public immutable parameters;

    mapping(bytes32 job => Job) internal _jobs;
    mapping(bytes32 job => Closing) internal _closing;

    constructor(address settlement_, Parameters parameters_) SignedMessages(settlement_) {
        settlement = settlement_;
        parameters = parameters_;
    }

    /// @notice Start to close a job by a seal of its coordinator. Open to anyone.
    /// @param first Needed unless the seal is `last` or has vested all it earned.
    function requestClose(
        Messages.JobHeader calldata header,
        Messages.Seal calldata seal,
        bytes calldata signature,
        FirstPayLeaf calldata first
    ) external {
        bytes32 job = Messages.jobId(header);
        _checkSeal(job, header.coordinator, seal, _signer(Messages.hash(seal), signature));
        if (stateOf(job) != JobState.Open) revert NotOpen(job);
        bool silence = !seal.last && block.timestamp <= header.deadline;
        _start(job, header.poster, seal.step + 1, seal.earned, _due(seal, first), silence);
    }

    /// @notice Start to close a job of which no seal is known: by its poster, or past the deadline by anyone.
    function requestCloseUnsealed(Messages.JobHeader calldata header) external {
        bytes32 job = Messages.jobId(header);
        if (stateOf(job) != JobState.Open) revert NotOpen(job);
        bool silence = block.timestamp <= header.deadline;
        if (silence && msg.sender != header.poster) revert PosterOnly(msg.sender, header.poster);
        if (_jobs[job].debited != 0 || _closing[job].shownSeals != 0) revert HasSeals(job);
        _start(job, header.poster, 0, 0, 0, silence);
    }

    /// @notice Answer a close with a later or better seal. Open to anyone.
    /// @dev A silence close is undone by a later seal until the response window starts; else the
    /// better seal takes the place of the shown one, and a `last` one makes the close final.
    function answerClose(
        Messages.JobHeader calldata header,
        Messages.Seal calldata seal,
        bytes calldata signature,
        FirstPayLeaf calldata first
    ) external {
        bytes32 job = Messages.jobId(header);
        _checkSeal(job, header.coordinator, seal, _signer(Messages.hash(seal), signature));
        if (stateOf(job) != JobState.Closing) revert NotClosing(job);
        Closing memory shown = _closing[job];
        uint64 seals = seal.step + 1;
        if (shown.silence && !seal.last && seals > shown.seals && block.timestamp < shown.respondFrom) {
            _keepOpen(job, seals);
            return;
        }
        bool better = seal.earned > shown.earned || (seal.earned == shown.earned && seals > shown.seals);
        if (!better) revert NotBetter(job, shown.earned, shown.seals);
        (shown.seals, shown.earned, shown.due) = (seals, seal.earned, _due(seal, first));
        if (shown.silence && seal.last) {
            shown.silence = false;
            _setTimes(shown, block.timestamp);
        }
        _closing[job] = shown;
        _emitClose(job, shown);
    }

    /// @notice None, Open, Closing (response window runs) or Closed.
    function stateOf(bytes32 job) public view returns (JobState) {
        if (_jobs[job].deposited == 0 && _jobs[job].closing == 0) return JobState.None;
        if (_jobs[job].closing == 0) return JobState.Open;
        return block.timestamp < _closing[job].endsAt ? JobState.Closing : JobState.Closed;
    }

    /// @notice Whether the job is closed and its refund delay is over: leases need their stake no more.
    function isOver(bytes32 job) external view returns (bool) {
        return stateOf(job) == JobState.Closed && block.timestamp >= _closing[job].refundableAt;
    }

    /// @notice A job's deposits less refunds, and what was debited so far.
    function fundsOf(bytes32 job) external view returns (uint96 deposited, uint96 debited) {
        return (_jobs[job].deposited, _jobs[job].debited);
    }

    /// @notice What a job could still pay: deposited less debited.
    function remaining(bytes32 job) external view returns (uint96) {
        return _jobs[job].deposited - _jobs[job].debited;
    }

    /// @notice The newest debit of a job; amount 0 if it was restored.
    function lastDebit(bytes32 job) external view returns (uint48 epoch, uint96 amount) {
        return (_jobs[job].lastEpoch, _jobs[job].lastDebit);
    }

    /// @notice How a job is closing or was closed; all zero but `shownSeals` and `shownAt` if it is open.
    function closingOf(bytes32 job) external view returns (Closing memory) {
        return _closing[job];
    }

    /// @dev Earned and not frozen. The pay tree proves the frozen part by its leftmost leaf.
    function _due(Messages.Seal calldata seal, FirstPayLeaf calldata first) private pure returns (uint96) {
        if (seal.last || seal.vested == seal.earned) return seal.vested;
        bytes32 leaf = SumTree.payLeaf(first.account, first.earned, first.vested);
        (bytes32 root, uint96 earned, uint96 vested) =
            SumTree.foldPay(leaf, first.earned, first.vested, 0, first.path);
        bool fits = root == seal.payRoot && earned == seal.earned && vested == seal.vested;
        if (!fits || first.account == address(0)) revert WrongPayLeaf();
        return first.account == FROZEN ? seal.earned - (first.earned - first.vested) : seal.earned;
    }

    function _start(bytes32 job, address poster, uint64 seals, uint96 earned, uint96 due, bool silence) private {
        Closing memory closing = _closing[job];
        uint256 respondFrom = block.timestamp;
        if (silence) {
            uint64 silenceLimit = parameters.value(Parameters.Key.SilenceLimit);
            bool early = closing.shownAt != 0 && block.timestamp < closing.shownAt + silenceLimit;
            if (early || seals < closing.shownSeals) revert NotSilent(job, closing.shownSeals, closing.shownAt);
            respondFrom += silenceLimit;
        }
        (closing.poster, closing.seals, closing.earned, closing.due) = (poster, seals, earned, due);
        closing.silence = silence;
        _setTimes(closing, respondFrom);
        _jobs[job].closing = 1;
        _closing[job] = closing;
        _emitClose(job, closing);
    }

    function _setTimes(Closing memory closing, uint256 respondFrom) private view {
        (uint64 responseWindow, uint64 refundDelay) = parameters.closingTerms();
        closing.respondFrom = uint40(respondFrom);
        closing.endsAt = uint40(respondFrom + responseWindow);
        closing.refundableAt = uint40(respondFrom + refundDelay);
    }

    function _keepOpen(bytes32 job, uint64 seals) private {
        delete _closing[job];
        _closing[job].shownSeals = seals;
        _closing[job].shownAt = uint40(block.timestamp);
        _jobs[job].closing = 0;
        emit KeptOpen(job, seals);
    }

    function _emitClose(bytes32 job, Closing memory closing) private {
        emit CloseRequested(
            job,
            closing.seals,
            closing.earned,
            closing.due,
            closing.silence,
            closing.endsAt,
            closing.refundableAt
        );
    }
}
