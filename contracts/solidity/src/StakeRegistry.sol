// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {JobEscrow} from "./JobEscrow.sol";
import {Parameters} from "./Parameters.sol";
import {StakeAccounts} from "./StakeAccounts.sol";

/// @title Stakes, and slashing them behind an announcement.
/// @notice A slash reaches the job's reservation, then free stake, then unbonding stake, matured or
/// not; the reservations of other jobs back those jobs and are not touched. The slasher announces,
/// waits and executes; the admin of the parameters can cancel; a case that is not executed in time
/// can be dropped by anyone. The judge gets nothing: what is taken goes to the job, the challenger
/// and the fire.
/// @dev I10 a slash never exceeds what was announced, nor the stake, nor the caps; taken =
/// restitution + bounty + burned. I12 a case ends exactly once.
contract StakeRegistry is StakeAccounts {
    using SafeERC20 for IERC20;

    struct Case {
        address account;
        uint96 amount;
        bytes32 job;
        address challenger;
        uint96 restitution; // of `amount`, to the job's escrow
        uint96 bounty; // of `amount`, to the challenger; the rest is burned
        uint40 executableAt;
        uint40 executableUntil;
    }

    /// @dev Only the slasher role announces and executes.
    error NotSlasher(address caller);
    /// @dev Only the slasher or the admin of the parameters cancels.
    error NotSlasherOrAdmin(address caller);
    /// @dev The slash breaks a cap: of the stake, the bounty or the burned part.
    error SlashCap(uint256 asked, uint256 cap);
    /// @dev The case does not exist or has ended.
    error UnknownCase(uint256 id);
    /// @dev The case cannot be executed now, or cannot be dropped yet.
    error NotExecutable(uint256 id, uint40 from, uint40 until);

    event SlashAnnounced(
        uint256 indexed id, address indexed account, bytes32 indexed job, uint96 amount, bytes32 evidence
    );
    event SlashEnded(uint256 indexed id, address indexed account, uint96 restitution, uint96 bounty, uint96 burned);

    /// @notice Where burned stake goes; nobody has the key.
    address public constant BURN = 0x000000000000000000000000000000000000dEaD;

    address public immutable slasher;

    /// @notice Number of slash cases so far; ids start at 1.
    uint256 public numCases;

    /// @notice Slash cases that are announced and have not ended.
    mapping(uint256 id => Case) public cases;

    constructor(IERC20 token_, address settlement_, JobEscrow escrow_, Parameters parameters_, address slasher_)
        StakeAccounts(token_, settlement_, escrow_, parameters_)
    {
        slasher = slasher_;
    }

    modifier onlySlasher() {
        if (msg.sender != slasher) revert NotSlasher(msg.sender);
        _;
    }

    /// @notice Announce a slash: it can be executed after the announcement window, and not for ever.
    /// @param evidence Digest of the published evidence.
    function announceSlash(
        address account,
        bytes32 job,
        uint96 amount,
        uint96 restitution,
        address challenger,
        uint96 bounty,
        bytes32 evidence
    ) external onlySlasher returns (uint256 id) {
        _checkCaps(account, job, amount, restitution, bounty);
        id = ++numCases;
        uint256 executableAt = block.timestamp + parameters.value(Parameters.Key.AnnouncementWindow);
        cases[id] = Case({
            account: account,
            amount: amount,
            job: job,
            challenger: challenger,
            restitution: restitution,
            bounty: bounty,
            executableAt: uint40(executableAt),
            executableUntil: uint40(executableAt + parameters.value(Parameters.Key.ExecutionWindow))
        });
        _accounts[account].openCases += 1;
        emit SlashAnnounced(id, account, job, amount, evidence);
    }

    /// @notice Take the announced amount, or what is left of it, and split it in the announced proportion.
    /// @dev I16: shares are rounded down and the dust is burned.
    function executeSlash(uint256 id) external onlySlasher nonReentrant {
        Case memory case_ = _end(id);
        if (block.timestamp < case_.executableAt || block.timestamp >= case_.executableUntil) {
            revert NotExecutable(id, case_.executableAt, case_.executableUntil);
        }
        uint96 taken = _take(case_.account, case_.job, case_.amount);
        uint96 restitution = uint96(uint256(taken) * case_.restitution / case_.amount);
        uint96 bounty = uint96(uint256(taken) * case_.bounty / case_.amount);
        uint96 burned = taken - restitution - bounty;
        emit SlashEnded(id, case_.account, restitution, bounty, burned);
        if (restitution != 0) {
            token.forceApprove(address(escrow), restitution);
            escrow.topUp(case_.job, restitution);
        }
        if (bounty != 0) token.safeTransfer(case_.challenger, bounty);
        if (burned != 0) token.safeTransfer(BURN, burned);
    }

    /// @notice End a case without a slash: by the slasher or the admin, or by anyone once it ran out.
    function dropSlash(uint256 id) external {
        Case memory case_ = _end(id);
        if (block.timestamp < case_.executableUntil && msg.sender != slasher && msg.sender != parameters.admin()) {
            revert NotSlasherOrAdmin(msg.sender);
        }
        emit SlashEnded(id, case_.account, 0, 0, 0);
    }

    /// @notice What a slash for `job` could take from `account` now.
    function slashable(bytes32 job, address account) public view returns (uint256) {
        Account storage account_ = _accounts[account];
        return uint256(reservation[job][account]) + account_.active - account_.reserved + account_.unbonding;
    }

    function _checkCaps(address account, bytes32 job, uint96 amount, uint96 restitution, uint96 bounty) private view {
        if (amount == 0) revert ZeroAmount();
        uint256 cap = slashable(job, account) * parameters.value(Parameters.Key.MaxSlashBps) / 10_000;
        if (amount > cap) revert SlashCap(amount, cap);
        cap = uint256(amount) * parameters.value(Parameters.Key.MaxBountyBps) / 10_000;
        if (bounty > cap) revert SlashCap(bounty, cap);
        cap = uint256(amount) * (10_000 - parameters.value(Parameters.Key.MinBurnBps)) / 10_000;
        if (uint256(restitution) + bounty > cap) revert SlashCap(uint256(restitution) + bounty, cap);
    }

    function _end(uint256 id) private returns (Case memory case_) {
        case_ = cases[id];
        if (case_.account == address(0)) revert UnknownCase(id);
        delete cases[id];
        _accounts[case_.account].openCases -= 1;
    }

    /// @dev From the job's reservation first, then free stake, then unbonding stake.
    function _take(address owner, bytes32 job, uint96 amount) private returns (uint96 taken) {
        Account memory account = _accounts[owner];
        uint96 reserved = _min(amount, reservation[job][owner]);
        uint96 free = _min(amount - reserved, account.active - account.reserved);
        uint96 unbonding = _min(amount - reserved - free, account.unbonding);
        reservation[job][owner] -= reserved;
        account.reserved -= reserved;
        account.active -= reserved + free;
        account.unbonding -= unbonding;
        _accounts[owner] = account;
        totalStaked -= reserved + free;
        return reserved + free + unbonding;
    }

    function _min(uint96 a, uint96 b) private pure returns (uint96) {
        return a < b ? a : b;
    }
}
