// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IRejections} from "./IRejections.sol";
import {JobEscrow} from "./JobEscrow.sol";
import {Parameters} from "./Parameters.sol";

/// @title Until when an epoch can be objected to, and what becomes of it.
/// @notice Twin of `contracts/governance/window.py`; `vectors.json` holds histories that both must tell alike.
///
///     None --propose--> Posted --window over--> Final
///     Posted --announceRejection, in the window--> Disputed
///     Disputed --rejectDebits, after the announcement and in the execution window--> Rejected
///     Disputed --execution window over--> Final
///
/// "Over" needs no transaction: the next proposal, or `finalize`, books it. Final and Rejected never
/// change, and the number of a rejected epoch is not used again.
/// @dev I7 a final root never changes and numbers have no gaps. I8 no end before its window, no
/// objection after it. I9 a pending epoch is not overwritten; a rejected one gives its debits back.
abstract contract EpochWindow is IRejections {
    enum EpochState {
        None,
        Posted,
        Disputed,
        Final,
        Rejected
    }

    struct Totals {
        uint96 funded; // debits of all final epochs
        uint96 paid; // claims so far
        uint48 newestRejected; // number of the newest rejected epoch; 0: none
        bool secondIsFinal; // which of the two roots is the final one
    }

    struct Epoch {
        uint96 rootSum; // funded, if this epoch becomes final
        uint48 number;
        uint40 endsAt; // Posted: the challenge window; Disputed: the announcement
        uint40 nextAt; // earliest time of the next proposal
        EpochState state;
    }

    struct Roots {
        bytes32 first;
        bytes32 second;
    }

    /// @dev Only the disputes role rejects.
    error NotDisputes(address caller);
    /// @dev Epoch numbers have no gaps (I7).
    error WrongEpoch(uint48 given, uint48 expected);
    /// @dev The pending epoch can still be objected to, or its rejection executed (I8, I9).
    error EpochPending(uint48 epoch, uint256 until);
    /// @dev Proposals keep a distance of the minimal epoch length.
    error EpochTooEarly(uint256 nextAt);
    /// @dev The epoch is not in its challenge window.
    error NotInWindow(uint48 epoch);
    /// @dev The rejection was not announced, is announced too recently, or too long ago.
    error NotExecutable(uint48 epoch);
    /// @dev Only debits of a rejected epoch are restored.
    error NotRejected(uint48 epoch);

    event EpochPosted(uint48 indexed epoch, bytes32 root, uint96 rootSum, uint40 windowEnds);
    event EpochFinal(uint48 indexed epoch, uint96 funded);
    event RejectionAnnounced(uint48 indexed epoch, bytes32 reasonHash, uint40 executableAt, uint40 executableUntil);
    event EpochRejected(uint48 indexed epoch);

    JobEscrow public immutable escrow;
    Parameters public immutable parameters;
    address public immutable disputes;

    Totals internal _totals;
    Epoch internal _newest;
    /// @dev The final root and the newest one change places when an epoch becomes final, so that
    /// neither is ever copied, or overwritten while it counts (I7, I9).
    Roots internal _roots;
    /// @notice End of the time in which an announced rejection can be executed.
    uint40 public executableUntil;

    /// @inheritdoc IRejections
    mapping(uint48 epoch => bool) public override isRejected;

    constructor(JobEscrow escrow_, Parameters parameters_, address disputes_) {
        escrow = escrow_;
        parameters = parameters_;
        disputes = disputes_;
    }

    modifier onlyDisputes() {
        if (msg.sender != disputes) revert NotDisputes(msg.sender);
        _;
    }

    /// @notice Object to the posted epoch in its challenge window.
    /// @param reasonHash Digest of the published reason.
    function announceRejection(uint48 epoch, bytes32 reasonHash) external onlyDisputes {
        Epoch memory newest = _newest;
        bool inWindow = newest.state == EpochState.Posted && block.timestamp < newest.endsAt;
        if (epoch != newest.number || !inWindow) revert NotInWindow(epoch);
        newest.state = EpochState.Disputed;
        newest.endsAt = uint40(block.timestamp + parameters.value(Parameters.Key.AnnouncementWindow));
        executableUntil = uint40(newest.endsAt + parameters.value(Parameters.Key.ExecutionWindow));
        _newest = newest;
        emit RejectionAnnounced(epoch, reasonHash, newest.endsAt, executableUntil);
    }

    /// @notice Execute an announced rejection: the root is dead, the named jobs get their debits back.
    /// @dev I9: other jobs of that epoch get theirs by `restoreDebits`, or when they are debited next.
    function rejectDebits(uint48 epoch, bytes32[] calldata jobs) external onlyDisputes {
        Epoch memory newest = _newest;
        bool inTime = block.timestamp >= newest.endsAt && block.timestamp < executableUntil;
        bool executable = newest.state == EpochState.Disputed && inTime;
        if (epoch != newest.number || !executable) revert NotExecutable(epoch);
        _newest.state = EpochState.Rejected;
        _totals.newestRejected = epoch;
        isRejected[epoch] = true;
        emit EpochRejected(epoch);
        _restore(epoch, jobs);
    }

    /// @notice Give further jobs their debits of a rejected epoch back. Open to anyone.
    function restoreDebits(uint48 epoch, bytes32[] calldata jobs) external {
        if (!isRejected[epoch]) revert NotRejected(epoch);
        _restore(epoch, jobs);
    }

    /// @notice Debits of all final epochs, and what of it was claimed.
    function totals() external view returns (uint96 funded, uint96 paid) {
        return (_totals.funded, _totals.paid);
    }

    /// @notice Root of the newest epoch that was booked as final; zero before the first.
    function finalRoot() external view returns (bytes32) {
        return _root(_totals.secondIsFinal);
    }

    /// @notice Root of the newest epoch, whatever its state.
    function newestRoot() external view returns (bytes32) {
        return _root(_totals.secondIsFinal == (_newest.state == EpochState.Final));
    }

    /// @notice The newest epoch as it stands in storage, and its state at this moment.
    function newestEpoch() external view returns (Epoch memory epoch, EpochState stateNow) {
        return (_newest, stateOf(_newest.number));
    }

    /// @notice State of an epoch at this moment; a window that is over counts though nobody booked it.
    function stateOf(uint48 epoch) public view returns (EpochState) {
        Epoch memory newest = _newest;
        if (epoch == 0 || epoch > newest.number) return EpochState.None;
        if (epoch < newest.number) return isRejected[epoch] ? EpochState.Rejected : EpochState.Final;
        return block.timestamp >= _finalFrom(newest) ? EpochState.Final : newest.state;
    }

    /// @dev Begins the challenge window of an epoch that `_mayFollow` let through.
    function _post(uint48 epoch, bytes32 root, uint96 rootSum, bool secondIsFinal, uint64 window, uint64 distance)
        internal
    {
        if (secondIsFinal) _roots.first = root;
        else _roots.second = root;
        uint40 endsAt = uint40(block.timestamp + window);
        uint40 nextAt = uint40(block.timestamp + distance);
        (_newest.rootSum, _newest.number, _newest.endsAt, _newest.nextAt, _newest.state) =
            (rootSum, epoch, endsAt, nextAt, EpochState.Posted);
        emit EpochPosted(epoch, root, rootSum, endsAt);
    }

    /// @dev Books the newest epoch as final if it was pending; refuses a number or a time that does not fit.
    function _mayFollow(uint48 epoch) internal returns (Totals memory) {
        Epoch memory newest = _newest;
        if (epoch != newest.number + 1) revert WrongEpoch(epoch, newest.number + 1);
        if (block.timestamp < newest.nextAt) revert EpochTooEarly(newest.nextAt);
        return _isPending(newest) ? _finalized(newest) : _totals;
    }

    /// @dev Books a pending epoch as final; reverts while it can still be objected to.
    function _finalized(Epoch memory newest) internal returns (Totals memory sums) {
        uint256 finalFrom = _finalFrom(newest);
        if (block.timestamp < finalFrom) revert EpochPending(newest.number, finalFrom);
        sums = _totals;
        (sums.funded, sums.secondIsFinal) = (newest.rootSum, !sums.secondIsFinal);
        _setTotals(sums.funded, sums.paid, sums.newestRejected, sums.secondIsFinal);
        emit EpochFinal(newest.number, newest.rootSum);
    }

    function _isPending(Epoch memory epoch) internal pure returns (bool) {
        return epoch.state == EpochState.Posted || epoch.state == EpochState.Disputed;
    }

    function _setTotals(uint96 funded, uint96 paid, uint48 newestRejected, bool secondIsFinal) internal {
        (_totals.funded, _totals.paid, _totals.newestRejected, _totals.secondIsFinal) =
            (funded, paid, newestRejected, secondIsFinal);
    }

    function _root(bool second) internal view returns (bytes32) {
        return second ? _roots.second : _roots.first;
    }

    function _restore(uint48 epoch, bytes32[] calldata jobs) private {
        for (uint256 i = 0; i < jobs.length; ++i) {
            escrow.restore(jobs[i], epoch);
        }
    }

    /// @dev When a pending epoch becomes final by itself; never for a rejected one, long ago for a final one.
    function _finalFrom(Epoch memory epoch) private view returns (uint256) {
        if (epoch.state == EpochState.Rejected) return type(uint256).max;
        return epoch.state == EpochState.Disputed ? executableUntil : epoch.endsAt;
    }
}
