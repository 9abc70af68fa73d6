// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {JobEscrow} from "./JobEscrow.sol";
import {Messages} from "./Messages.sol";
import {Parameters} from "./Parameters.sol";
import {PayoutVault} from "./PayoutVault.sol";
import {SealAnchor} from "./SealAnchor.sol";
import {SignedMessages} from "./SignedMessages.sol";
import {StakeRegistry} from "./StakeRegistry.sol";
import {SumTree} from "./SumTree.sol";

/// @title One cumulative root per epoch: what each account may have been paid in total.
/// @notice The proposer posts a root over (account, root of its jobs, cumulative sum) together with
/// one coordinator-signed seal per job. Each job is debited what its seal vests beyond earlier
/// debits, and the sum of those debits is all that the root may add. After the challenge window the
/// epoch is final and anyone claims for anyone. Life of an epoch (twin of the window in
/// `contracts/governance`):
///
///     None --propose--> Posted --window over--> Final
///     Posted --announceRejection, in the window--> Disputed
///     Disputed --rejectDebits, after the announcement and in the execution window--> Rejected
///     Disputed --execution window over--> Final
///
/// "Over" needs no transaction: the next proposal, or `finalize`, books it. A rejected epoch's number
/// is not used again.
/// @dev All addresses are immutable, so a reader who trusts this contract finds the others in its code.
/// I3 paid <= funded = debits of final epochs. I4 claimed never falls. I5, I6 by the sum tree.
/// I7 a final root never changes and numbers have no gaps. I8 windows. I9 no pending epoch is overwritten.
contract Settlement is SignedMessages {
    enum EpochState {
        None,
        Posted,
        Disputed,
        Final,
        Rejected
    }

    struct Contracts {
        IERC20 token;
        JobEscrow escrow;
        StakeRegistry stakes;
        SealAnchor seals;
        PayoutVault vault;
        Parameters parameters;
    }

    /// @notice A job's order of pay. For a closed job the signature may be zero: then the seal is not read, and the
    /// job owes what its closing found to be due.
    struct Statement {
        Messages.JobHeader header;
        Messages.Seal seal;
        Messages.Signature signature;
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

    /// @dev Only the proposer posts epochs.
    error NotProposer(address caller);
    /// @dev Only the disputes role rejects.
    error NotDisputes(address caller);
    /// @dev A contract at one of the given addresses belongs to another deployment.
    error WrongWiring(address found);
    /// @dev Epoch numbers have no gaps (I7).
    error WrongEpoch(uint48 given, uint48 expected);
    /// @dev The pending epoch can still be objected to, or its rejection executed (I8, I9).
    error EpochPending(uint48 epoch, uint256 until);
    /// @dev Proposals keep a distance of the minimal epoch length.
    error EpochTooEarly(uint256 nextAt);
    /// @dev The root's sum must be what was funded plus the debits of this call.
    error WrongSum(uint96 given, uint256 expected);
    /// @dev No posted or disputed epoch has run out.
    error NothingToFinalize();
    /// @dev The epoch is not in its challenge window.
    error NotInWindow(uint48 epoch);
    /// @dev The rejection was not announced, is announced too recently, or too long ago.
    error NotExecutable(uint48 epoch);
    /// @dev Only debits of a rejected epoch are restored.
    error NotRejected(uint48 epoch);
    /// @dev The leaf and its path do not lead to the final root.
    error WrongProof();
    /// @dev Everything that the leaf grants was paid.
    error NothingToClaim(address account, uint96 claimed);
    /// @dev Paying this would exceed what jobs were debited (I3).
    error ExceedsFunded(uint96 paid, uint96 amount, uint96 funded);

    event EpochPosted(uint48 indexed epoch, bytes32 root, uint96 rootSum, uint40 windowEnds);
    event EpochFinal(uint48 indexed epoch, uint96 funded);
    event RejectionAnnounced(uint48 indexed epoch, bytes32 reasonHash, uint40 executableAt, uint40 executableUntil);
    event EpochRejected(uint48 indexed epoch);
    event Claimed(address indexed account, uint96 amount, uint96 cumulative);

    IERC20 public immutable token;
    JobEscrow public immutable escrow;
    StakeRegistry public immutable stakes;
    SealAnchor public immutable seals;
    PayoutVault public immutable vault;
    Parameters public immutable parameters;
    address public immutable proposer;
    address public immutable disputes;

    Totals private _totals;
    Epoch private _newest;
    /// @dev The final root and the newest one change places when an epoch becomes final, so that
    /// neither is ever copied or overwritten while it counts (I7, I9).
    Roots private _roots;
    /// @notice End of the time in which an announced rejection can be executed.
    uint40 public executableUntil;

    /// @notice Base units paid to an account so far.
    mapping(address account => uint256) public claimed;
    /// @notice Whether an epoch was rejected.
    mapping(uint48 epoch => bool) public isRejected;

    constructor(Contracts memory contracts, address proposer_, address disputes_) SignedMessages(address(this)) {
        token = contracts.token;
        escrow = contracts.escrow;
        stakes = contracts.stakes;
        seals = contracts.seals;
        vault = contracts.vault;
        parameters = contracts.parameters;
        (proposer, disputes) = (proposer_, disputes_);
        if (contracts.escrow.settlement() != address(this)) revert WrongWiring(address(contracts.escrow));
        if (contracts.stakes.settlement() != address(this)) revert WrongWiring(address(contracts.stakes));
        if (contracts.vault.settlement() != address(this)) revert WrongWiring(address(contracts.vault));
    }

    modifier onlyDisputes() {
        if (msg.sender != disputes) revert NotDisputes(msg.sender);
        _;
    }

    /// @notice Post the next epoch: debit every job by its statement and start the challenge window.
    /// @param rootSum Sum of `root`; must equal the funded total plus the debits, computed here.
    function propose(uint48 epoch, bytes32 root, uint96 rootSum, Statement[] calldata statements) external {
        if (msg.sender != proposer) revert NotProposer(msg.sender);
        Epoch memory newest = _newest;
        if (epoch != newest.number + 1) revert WrongEpoch(epoch, newest.number + 1);
        if (block.timestamp < newest.nextAt) revert EpochTooEarly(newest.nextAt);
        Totals memory sums = _finalized(newest);
        (uint64 challengeWindow, uint64 minEpochLength, uint64 maxEpochCap) = parameters.epochTerms();
        uint256 sum = sums.funded;
        for (uint256 i = 0; i < statements.length; ++i) {
            sum += _debit(statements[i], epoch, maxEpochCap, sums.newestRejected);
        }
        if (sum != rootSum) revert WrongSum(rootSum, sum);
        if (sums.secondIsFinal) _roots.first = root;
        else _roots.second = root;
        uint40 endsAt = uint40(block.timestamp + challengeWindow);
        uint40 nextAt = uint40(block.timestamp + minEpochLength);
        (_newest.rootSum, _newest.number, _newest.endsAt, _newest.nextAt, _newest.state) =
            (rootSum, epoch, endsAt, nextAt, EpochState.Posted);
        emit EpochPosted(epoch, root, rootSum, endsAt);
    }

    /// @notice Book an epoch whose window is over as final and move its money to the vault. Open to anyone.
    function finalize() external {
        Epoch memory newest = _newest;
        if (newest.state != EpochState.Posted && newest.state != EpochState.Disputed) revert NothingToFinalize();
        Totals memory sums = _finalized(newest);
        newest.state = EpochState.Final;
        _newest = newest;
        escrow.release(sums.funded);
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
        bool executable = newest.state == EpochState.Disputed && block.timestamp >= newest.endsAt
            && block.timestamp < executableUntil;
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

    /// @notice Pay `account` what the final root grants beyond what it got. Open to anyone, for anyone.
    /// @param cumulative The leaf's total over all epochs.
    /// @param jobsRoot Root of the account's totals per job.
    /// @param sides Bit i set: the i-th sibling of the path stands on the left.
    /// @param path Siblings from the leaf up, 32 bytes of hash and 12 of sum each.
    function claim(address account, uint96 cumulative, bytes32 jobsRoot, uint256 sides, bytes calldata path) external {
        (bytes32 root, uint96 sum) =
            SumTree.fold(SumTree.settlementLeaf(account, jobsRoot, cumulative), cumulative, sides, path);
        Totals memory sums = _totals;
        if (root != _root(sums.secondIsFinal) || sum != sums.funded) revert WrongProof();
        uint96 before = uint96(claimed[account]);
        if (cumulative <= before) revert NothingToClaim(account, before);
        uint96 amount = cumulative - before;
        if (amount > sums.funded - sums.paid) revert ExceedsFunded(sums.paid, amount, sums.funded);
        claimed[account] = cumulative;
        _setTotals(sums.funded, sums.paid + amount, sums.newestRejected, sums.secondIsFinal);
        emit Claimed(account, amount, cumulative);
        vault.pay(account, amount, sums.funded);
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

    function _setTotals(uint96 funded, uint96 paid, uint48 newestRejected, bool secondIsFinal) private {
        (_totals.funded, _totals.paid, _totals.newestRejected, _totals.secondIsFinal) =
            (funded, paid, newestRejected, secondIsFinal);
    }

    function _root(bool second) private view returns (bytes32) {
        return second ? _roots.second : _roots.first;
    }

    /// @dev Books `newest` as final if it was pending; reverts while it still is.
    function _finalized(Epoch memory newest) private returns (Totals memory sums) {
        sums = _totals;
        if (newest.state != EpochState.Posted && newest.state != EpochState.Disputed) return sums;
        uint256 finalFrom = _finalFrom(newest);
        if (block.timestamp < finalFrom) revert EpochPending(newest.number, finalFrom);
        (sums.funded, sums.secondIsFinal) = (newest.rootSum, !sums.secondIsFinal);
        _setTotals(sums.funded, sums.paid, sums.newestRejected, sums.secondIsFinal);
        emit EpochFinal(newest.number, newest.rootSum);
    }

    function _debit(Statement calldata it, uint48 epoch, uint64 maxEpochCap, uint48 newestRejected)
        private
        returns (uint96)
    {
        bytes32 job = Messages.jobId(it.header);
        uint96 vested = it.signature.v == 0
            ? Messages.WHATEVER_IS_DUE
            : _checkSeal(job, it.header.coordinator, it.seal, _signer(Messages.hash(it.seal), it.signature));
        uint96 cap = it.header.epochCap < maxEpochCap ? it.header.epochCap : maxEpochCap;
        return escrow.debit(job, vested, cap, epoch, newestRejected);
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
