// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title The protocol's numbers: typed, inside hard bounds, changed only after notice.
/// @notice One admin schedules a change; after the notice period, which is never shorter than an
/// epoch, anyone enacts it. What is already running keeps the numbers it started with: window ends
/// are stored when a window opens. Bounds and relations are part of the code and cannot be changed.
/// Twin of `contracts/governance` parameters. Units: s = seconds, bps = 1/10,000, ppm = 1/1,000,000.
/// @dev I13: no effect before the notice is over; bounds and relations hold at every moment.
/// Four 64-bit values share a word; the first word is all that `Settlement.propose` reads.
contract Parameters {
    enum Key {
        ChallengeWindow, // s in which a posted epoch can be objected to
        MinEpochLength, // s between two posted epochs
        MaxEpochCap, // base units one job can be debited per epoch, whatever its spec says
        AnnouncementWindow, // s between announcing and executing a rejection or a slash
        ResponseWindow, // s in which a better seal can be shown when a job closes
        RefundDelay, // s from the close of a job to its refund
        SilenceLimit, // s without a seal after which anyone may close (T)
        EpochLength, // s, the nominal settlement period
        UnbondingDelay, // s from asking for stake back to getting it
        ExecutionWindow, // s in which an announced rejection or slash can be executed
        MaxSlashBps, // largest part of an account's reachable stake one slash takes
        MaxBountyBps, // largest part of a slash for the challenger
        MinBurnBps, // smallest part of a slash that is burned
        NoticePeriod, // s between scheduling and enacting a change of these numbers
        AuditFloorPpm, // q floor: smallest probability that a peer-step is drawn
        SumAuditPpm, // q_sum: probability that a chunk is drawn
        RepeatPpm, // r: part of the audits that an outside auditor repeats
        MarginPpm, // m: by how much the audit rate exceeds break-even
        DeadlineSteps, // D: steps in which a drawn auditor must report
        VestingSteps // W: steps after which pay vests
    }

    /// @dev Only the admin schedules and cancels.
    error NotAdmin(address caller);
    /// @dev The value is outside its hard bounds.
    error OutOfBounds(Key key, uint64 value, uint64 min, uint64 max);
    /// @dev The values no longer fit each other; `rule` numbers the lines of `_checkRelations`.
    error RelationBroken(uint8 rule);
    /// @dev No change of this key is scheduled.
    error NothingScheduled(Key key);
    /// @dev The notice is not over yet.
    error NoticeRunning(Key key, uint64 effectiveAt);
    /// @dev The constructor wants one value per key.
    error WrongCount(uint256 given);

    event ChangeScheduled(Key indexed key, uint64 value, uint64 effectiveAt);
    event ChangeCancelled(Key indexed key, uint64 value);
    event ChangeEnacted(Key indexed key, uint64 value);

    struct Change {
        uint64 value;
        uint64 effectiveAt;
    }

    uint256 public constant NUM_KEYS = 20;
    uint256 private constant PER_WORD = 4;

    address public immutable admin;

    uint256[NUM_KEYS / PER_WORD] private _words;

    /// @notice The change that waits for its notice; `effectiveAt` 0 if there is none.
    mapping(Key key => Change) public scheduled;

    constructor(address admin_, uint64[] memory values_) {
        if (values_.length != NUM_KEYS) revert WrongCount(values_.length);
        admin = admin_;
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            _set(Key(i), values_[i]);
        }
        _checkRelations();
    }

    modifier onlyAdmin() {
        if (msg.sender != admin) revert NotAdmin(msg.sender);
        _;
    }

    /// @notice Announce a new value; it replaces a change of this key that is not enacted yet.
    function schedule(Key key, uint64 value_) external onlyAdmin {
        _checkBounds(key, value_);
        uint64 effectiveAt = uint64(block.timestamp) + value(Key.NoticePeriod);
        scheduled[key] = Change(value_, effectiveAt);
        emit ChangeScheduled(key, value_, effectiveAt);
    }

    /// @notice Withdraw an announced change.
    function cancel(Key key) external onlyAdmin {
        Change memory change = scheduled[key];
        if (change.effectiveAt == 0) revert NothingScheduled(key);
        delete scheduled[key];
        emit ChangeCancelled(key, change.value);
    }

    /// @notice Put an announced change into effect after its notice. Open to anyone.
    function enact(Key key) external {
        Change memory change = scheduled[key];
        if (change.effectiveAt == 0) revert NothingScheduled(key);
        if (block.timestamp < change.effectiveAt) revert NoticeRunning(key, change.effectiveAt);
        delete scheduled[key];
        _set(key, change.value);
        _checkRelations();
        emit ChangeEnacted(key, change.value);
    }

    /// @notice The value in effect now.
    function value(Key key) public view returns (uint64) {
        return _lane(_words[uint256(key) / PER_WORD], uint256(key) % PER_WORD);
    }

    /// @notice All values, in the order of `Key`.
    function values() external view returns (uint64[] memory all) {
        all = new uint64[](NUM_KEYS);
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            all[i] = value(Key(i));
        }
    }

    /// @notice What posting an epoch needs, in one storage read.
    function epochTerms()
        external
        view
        returns (uint64 challengeWindow, uint64 minEpochLength, uint64 maxEpochCap)
    {
        uint256 word = _words[0];
        return (_lane(word, 0), _lane(word, 1), _lane(word, 2));
    }

    /// @notice What closing a job needs, in one storage read.
    function closingTerms() external view returns (uint64 responseWindow, uint64 refundDelay) {
        uint256 word = _words[1];
        return (_lane(word, 0), _lane(word, 1));
    }

    /// @notice The hard bounds of a value, both inclusive.
    function bounds(Key key) public pure returns (uint64 min, uint64 max) {
        if (key == Key.ChallengeWindow) return (2, 30 days);
        if (key == Key.MinEpochLength) return (1, 7 days);
        if (key == Key.MaxEpochCap) return (1e6, 1e16); // fits JobEscrow's 56 bits
        if (key == Key.AnnouncementWindow) return (2, 30 days);
        if (key == Key.ResponseWindow) return (2, 30 days);
        if (key == Key.RefundDelay) return (5, 180 days);
        if (key == Key.SilenceLimit) return (10, 30 days);
        if (key == Key.EpochLength) return (1, 30 days);
        if (key == Key.UnbondingDelay) return (10, 180 days);
        if (key == Key.ExecutionWindow) return (10, 30 days);
        if (key == Key.MaxSlashBps) return (1, 10_000);
        if (key == Key.MaxBountyBps) return (0, 2_000);
        if (key == Key.MinBurnBps) return (5_000, 10_000);
        if (key == Key.NoticePeriod) return (1, 90 days);
        if (key == Key.AuditFloorPpm) return (10_000, 1e6);
        if (key == Key.SumAuditPpm) return (10_000, 1e6);
        if (key == Key.RepeatPpm) return (50_000, 1e6);
        if (key == Key.MarginPpm) return (1_050_000, 10e6);
        if (key == Key.DeadlineSteps) return (1, 64);
        return (1, 1_000); // VestingSteps
    }

    function _set(Key key, uint64 value_) private {
        _checkBounds(key, value_);
        uint256 shift = 64 * (uint256(key) % PER_WORD);
        uint256 word = _words[uint256(key) / PER_WORD];
        _words[uint256(key) / PER_WORD] = (word & ~(uint256(type(uint64).max) << shift)) | (uint256(value_) << shift);
    }

    function _checkBounds(Key key, uint64 value_) private pure {
        (uint64 min, uint64 max) = bounds(key);
        if (value_ < min || value_ > max) revert OutOfBounds(key, value_, min, max);
    }

    function _checkRelations() private view {
        // A refund never comes before an epoch with the job's last debit could be posted and judged.
        uint64 settled = value(Key.ResponseWindow) + value(Key.EpochLength) + value(Key.ChallengeWindow);
        if (value(Key.RefundDelay) < settled) revert RelationBroken(1);
        if (value(Key.MinEpochLength) > value(Key.EpochLength)) revert RelationBroken(2);
        if (value(Key.NoticePeriod) < value(Key.EpochLength)) revert RelationBroken(3);
        if (value(Key.MaxBountyBps) + value(Key.MinBurnBps) > 10_000) revert RelationBroken(4);
    }

    function _lane(uint256 word, uint256 index) private pure returns (uint64) {
        return uint64(word >> (64 * index));
    }
}
