// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title The protocol's numbers: inside hard bounds, changed only after notice.
/// @notice One admin schedules a change; after the notice period anyone enacts it. Jobs are checked
/// against these numbers; no money depends on them. Bounds are part of the code and cannot be changed.
/// Twin of `contracts/governance/parameters.py`. Units: s = seconds, ppm = 1/1,000,000.
contract Parameters {
    enum Key {
        NoticePeriod, // s between scheduling and enacting a change of these numbers
        AuditFloorPpm, // q floor: smallest probability that a peer-step is drawn
        SumAuditPpm, // q_sum: probability that a bucket is drawn
        RepeatPpm, // r: part of the audits that an outside auditor repeats
        MarginPpm, // m: by how much the audit rate exceeds break-even
        DeadlineSteps, // D: steps in which a drawn auditor must report
        VestingSteps // W: steps after which pay vests
    }

    /// @dev Only the admin schedules and cancels.
    error NotAdmin(address caller);
    /// @dev The value is outside its hard bounds.
    error OutOfBounds(Key key, uint64 value, uint64 min, uint64 max);
    /// @dev No change of this key is scheduled.
    error NothingScheduled(Key key);
    /// @dev The notice is not over yet.
    error NoticeRunning(Key key, uint64 effectiveAt);

    event ChangeScheduled(Key indexed key, uint64 value, uint64 effectiveAt);
    event ChangeCancelled(Key indexed key, uint64 value);
    event ChangeEnacted(Key indexed key, uint64 value);

    struct Change {
        uint64 value;
        uint64 effectiveAt;
    }

    uint256 public constant NUM_KEYS = 7;

    address public immutable admin;

    /// @notice The value in effect now.
    mapping(Key key => uint64) public value;
    /// @notice The change that waits for its notice; `effectiveAt` 0 if there is none.
    mapping(Key key => Change) public scheduled;

    constructor(address admin_, uint64[NUM_KEYS] memory values_) {
        admin = admin_;
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            _checkBounds(Key(i), values_[i]);
            value[Key(i)] = values_[i];
        }
    }

    modifier onlyAdmin() {
        if (msg.sender != admin) revert NotAdmin(msg.sender);
        _;
    }

    /// @notice Announce a new value; it replaces a change of this key that is not enacted yet.
    function schedule(Key key, uint64 value_) external onlyAdmin {
        _checkBounds(key, value_);
        uint64 effectiveAt = uint64(block.timestamp) + value[Key.NoticePeriod];
        scheduled[key] = Change(value_, effectiveAt);
        emit ChangeScheduled(key, value_, effectiveAt);
    }

    /// @notice Withdraw an announced change.
    function cancel(Key key) external onlyAdmin {
        emit ChangeCancelled(key, _unschedule(key).value);
    }

    /// @notice Put an announced change into effect after its notice. Open to anyone.
    function enact(Key key) external {
        Change memory change = _unschedule(key);
        if (block.timestamp < change.effectiveAt) revert NoticeRunning(key, change.effectiveAt);
        value[key] = change.value;
        emit ChangeEnacted(key, change.value);
    }

    /// @notice All values, in the order of `Key`.
    function values() external view returns (uint64[NUM_KEYS] memory all) {
        for (uint256 i = 0; i < NUM_KEYS; ++i) {
            all[i] = value[Key(i)];
        }
    }

    /// @notice The hard bounds of a value, both inclusive.
    function bounds(Key key) public pure returns (uint64 min, uint64 max) {
        if (key == Key.NoticePeriod) return (1, 90 days);
        if (key == Key.RepeatPpm) return (50_000, 1e6);
        if (key == Key.MarginPpm) return (1_050_000, 10e6);
        if (key == Key.DeadlineSteps) return (1, 64);
        if (key == Key.VestingSteps) return (1, 1_000);
        return (10_000, 1e6); // AuditFloorPpm, SumAuditPpm
    }

    function _unschedule(Key key) private returns (Change memory change) {
        change = scheduled[key];
        if (change.effectiveAt == 0) revert NothingScheduled(key);
        delete scheduled[key];
    }

    function _checkBounds(Key key, uint64 value_) private pure {
        (uint64 min, uint64 max) = bounds(key);
        if (value_ < min || value_ > max) revert OutOfBounds(key, value_, min, max);
    }
}
