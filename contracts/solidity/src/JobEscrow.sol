// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Multicall} from "@openzeppelin/contracts/utils/Multicall.sol";
import {PayTree} from "./PayTree.sol";

/// @title Budgets, stakes and pay: a payment channel a job, whose capacity is set aside account by account.
/// @notice A job's budget is divided before the work is done: the coordinator grants each account a
/// limit. From then on any seal of the coordinator pays the account up to its limit, whoever shows it
/// and whenever. A false seal gives a friend no more than the friend's limit, and takes no pay from anybody.
/// No owner, parameter, pause or upgrade touches money. Amounts are base units, times Unix seconds.
/// @dev Invariants (docs/protocol.md, section 6), for each job and account:
/// J1 token balance = balances + stakes + sum(funded - claimed of its accounts) + what came by mistake.
/// J2 sum(limit) = committed <= funded, and max(claimed, earned) <= limit.
/// J3 claimed + payable = min(best vested total that was signed, limit); it falls by the account's quitting, or
/// at `release` for what nobody had shown by then.
/// J4 committed grows by at most burst + rate * t in any time t.
/// J5 money of a job goes to accounts with a limit and to its poster.
/// J6 stake is free `TAIL` after the account's end, by a call of anyone.
/// J7 claimed and earned never fall; a limit falls by `quit` and `release` alone.
/// The token: a transfer moves what it says (no fees, no rebasing, no hooks), and there are less than 2^96 units.
/// Events tell all that is stored, but for the nonces of withdrawals.
contract JobEscrow is EIP712, Multicall {
    using SafeERC20 for IERC20;

    /// @notice What a poster signs; its struct hash is the job's id. The spec is signed by its hash.
    struct JobHeader {
        address poster;
        address coordinator;
        bytes32 specHash;
        uint80 budget; // what `open` takes from the poster
        uint80 burst; // what may be granted at once
        uint80 rate; // base units an hour by which that refills
        uint40 openBy;
        uint256 salt; // any number; all headers that a poster signed may be opened until `openBy`
    }

    /// @notice One entry of `bondMany`: what an account signed.
    struct SignedBond {
        address account;
        uint80 stake;
        uint40 by;
        bytes signature;
    }

    struct Balance {
        uint96 amount;
        uint32 nonce;
    }

    struct Job {
        uint80 funded;
        uint80 committed;
        uint40 closedAt;
        bool opened;
    }

    struct Bucket {
        uint80 allowance;
        uint40 since; // 0: never used
    }

    struct Granted {
        uint80 limit;
        uint80 claimed;
        uint80 earned; // as shown to this contract
        bool ended; // as `Bond.end != 0`, so that a grant reads one word
    }

    struct Bond {
        uint80 stake;
        uint40 end; // 0: not ended by itself
        uint80 slashAmount;
        uint40 slashFrom;
    }

    /// @dev A signature counts until `by`, and `by` is at most MARGIN away.
    error NotInTime(uint40 by);
    /// @dev The message was not signed by the party that it binds, and that party does not call.
    error WrongSigner(address signer, address expected);
    error JobExists(bytes32 job);
    error UnknownJob(bytes32 job);
    error JobIsClosed(bytes32 job);
    error InsufficientBalance(address account, uint256 balance, uint256 needed);
    error WrongNonce(uint32 nonce, uint32 expected);
    /// @dev The account ended, or the stake does not rise.
    error CannotBond(bytes32 job, address account, uint80 stake);
    error NotSlasher(address caller);
    /// @dev No such amount is at stake, a slash is open, or none is.
    error CannotSlash(bytes32 job, address account);
    error TimesTooShort();

    event Deposited(address indexed account, uint96 amount);
    event Withdrawn(address indexed account, address indexed to, uint96 amount, uint96 fee); // the fee is in the amount
    event Opened(bytes32 indexed job, address indexed poster, JobHeader header);
    event ToppedUp(bytes32 indexed job, uint80 amount);
    event Reclaimed(bytes32 indexed job, uint80 amount);
    event LimitSet(bytes32 indexed job, address indexed account, uint80 limit);
    event Bonded(bytes32 indexed job, address indexed account, uint80 stake);
    event Claimed(bytes32 indexed job, address indexed account, uint80 amount, uint80 earned);
    event Ended(bytes32 indexed job, address indexed account);
    event Closed(bytes32 indexed job);
    event Released(bytes32 indexed job, address indexed account, uint80 stake);
    event SlashAnnounced(bytes32 indexed job, address indexed account, uint80 amount, bytes32 evidence);
    event SlashDropped(bytes32 indexed job, address indexed account);
    event Burned(bytes32 indexed job, address indexed account, uint80 amount);

    bytes32 private constant HEADER = keccak256(
        "JobHeader(address poster,address coordinator,bytes32 specHash,uint80 budget,uint80 burst,uint80 rate,uint40 openBy,uint256 salt)"
    );
    bytes32 private constant GRANT = keccak256("Grant(bytes32 job,uint256[] limits,uint40 by)");
    bytes32 private constant BOND = keccak256("Bond(bytes32 job,address account,uint80 stake,uint40 by)");
    bytes32 private constant QUIT = keccak256("Quit(bytes32 job,address account,uint80 keep,uint40 by)");
    bytes32 private constant END = keccak256("End(bytes32 job,address[] accounts,uint40 by)");
    bytes32 private constant CLOSE = keccak256("Close(bytes32 job,uint40 by)");
    bytes32 private constant SEAL = keccak256("Seal(bytes32 job,bytes32 payRoot,bytes32 details)");
    bytes32 private constant WITHDRAW =
        keccak256("Withdraw(address account,uint96 amount,uint96 fee,uint32 nonce,uint40 by)");

    /// @notice Whose balance holds what was slashed: nobody's.
    address public constant BURN = 0x000000000000000000000000000000000000dEaD;

    IERC20 public immutable token;
    address public immutable slasher;
    address public immutable canceller;
    /// @notice Longest time that a signature counts.
    uint40 public immutable MARGIN;
    /// @notice Time between the announcement of a slash and the first moment of its execution.
    uint40 public immutable ANNOUNCE;
    /// @notice Time in which an announced slash may be executed.
    uint40 public immutable EXECUTE;
    /// @notice Time after an account's end in which seals may be shown before unspent limits flow back.
    uint40 public immutable TAIL;

    mapping(address account => Balance) public balances;
    mapping(bytes32 job => Job) public jobs;
    mapping(bytes32 job => Bucket) public buckets;
    mapping(bytes32 job => mapping(address account => Granted)) public granted;
    mapping(bytes32 job => mapping(address account => Bond)) public bonds;

    constructor(IERC20 token_, address slasher_, address canceller_, uint40[4] memory times)
        EIP712("Tallystick", "2")
    {
        (token, slasher, canceller) = (token_, slasher_, canceller_);
        (MARGIN, ANNOUNCE, EXECUTE, TAIL) = (times[0], times[1], times[2], times[3]);
        // Else stake could be released before an announced slash is over, or a held signature bind it again.
        if (times[3] <= uint256(times[1]) + times[2] + times[0] || times[2] == 0) revert TimesTooShort();
    }

    // ---- free money ----

    /// @notice Add the caller's tokens to the balance of `account`.
    function deposit(address account, uint96 amount) external {
        balances[account].amount += amount;
        emit Deposited(account, amount);
        token.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @notice Use an EIP-2612 permit, before `open` or `deposit` in one multicall. A permit that
    /// somebody used before fails and is ignored: the allowance decides.
    function permit(address owner, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external {
        try IERC20Permit(address(token)).permit(owner, address(this), amount, deadline, v, r, s) {} catch {}
    }

    /// @notice Send the caller's free money to `to`.
    function withdraw(address to, uint96 amount) external {
        _take(msg.sender, amount);
        emit Withdrawn(msg.sender, to, amount, 0);
        token.safeTransfer(to, amount);
    }

    /// @notice Send free money of `account`, which signed this, to itself; `fee` of it to the caller.
    function withdrawFor(
        address account,
        uint96 amount,
        uint96 fee,
        uint32 nonce,
        uint40 by,
        bytes calldata signature
    ) external {
        _checkTime(by);
        _checkSigner(account, keccak256(abi.encode(WITHDRAW, account, amount, fee, nonce, by)), signature);
        uint32 expected = balances[account].nonce++;
        if (nonce != expected) revert WrongNonce(nonce, expected);
        _take(account, amount);
        emit Withdrawn(account, account, amount, fee);
        token.safeTransfer(account, amount - fee); // a fee above the amount reverts
        if (fee != 0) token.safeTransfer(msg.sender, fee);
    }

    // ---- the poster ----

    /// @notice Open the job of `header` with its budget from the poster's tokens.
    /// @param signature The poster's; empty where the poster calls.
    function open(JobHeader calldata header, bytes calldata signature) external returns (bytes32 job) {
        job = jobId(header);
        if (jobs[job].opened) revert JobExists(job);
        if (block.timestamp > header.openBy) revert NotInTime(header.openBy);
        _authorise(header.poster, job, header.openBy, signature);
        jobs[job] = Job({funded: header.budget, committed: 0, closedAt: 0, opened: true});
        emit Opened(job, header.poster, header);
        token.safeTransferFrom(header.poster, address(this), header.budget);
    }

    /// @notice Add the caller's tokens to a job's budget. What is not granted is the poster's.
    function topUp(bytes32 job, uint80 amount) external {
        _working(job).funded += amount;
        emit ToppedUp(job, amount);
        token.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @notice Give the poster at most `amount` of what is not committed: the poster at any time, anyone
    /// `TAIL` after the close. What a call in front has taken does not make it fail.
    function reclaim(JobHeader calldata header, uint80 amount) external {
        bytes32 id = jobId(header);
        Job storage job = jobs[id];
        bool over = job.closedAt != 0 && block.timestamp >= uint256(job.closedAt) + TAIL;
        if (msg.sender != header.poster && !over) revert WrongSigner(msg.sender, header.poster);
        uint80 free = job.funded - job.committed; // J2
        if (amount > free) amount = free;
        if (amount == 0) return;
        job.funded -= amount;
        balances[header.poster].amount += amount;
        emit Reclaimed(id, amount);
    }

    /// @notice End the work of all accounts. Seals still pay; `TAIL` later unspent limits flow back.
    function close(JobHeader calldata header, uint40 by, bytes calldata signature) external {
        bytes32 id = jobId(header);
        _authorise(header.poster, keccak256(abi.encode(CLOSE, id, by)), by, signature);
        Job storage job = jobs[id];
        if (!job.opened) revert UnknownJob(id);
        if (job.closedAt != 0) return;
        job.closedAt = uint40(block.timestamp);
        emit Closed(id);
    }

    // ---- the coordinator ----

    /// @notice Raise limits, each in order, as far as the token bucket and the budget allow; what
    /// they do not allow, a limit that does not rise and an account that has ended are skipped.
    /// @param limits A word each: the account in the high 160 bits, its limit in the low 96.
    function grant(JobHeader calldata header, uint256[] calldata limits, uint40 by, bytes calldata signature)
        external
    {
        bytes32 id = jobId(header);
        _checkTime(by);
        _checkSigner(
            header.coordinator, keccak256(abi.encode(GRANT, id, keccak256(abi.encodePacked(limits)), by)), signature
        );
        Job storage job = _working(id);
        uint256 allowance = _allowance(header, buckets[id]);
        uint256 room = job.funded - job.committed; // J2
        if (room > allowance) room = allowance;
        uint256 grown = _raise(id, limits, room);
        if (grown == 0) return; // a replay neither spends the allowance nor rounds it down
        // Casts: grown <= room <= uint80, and so is the allowance.
        job.committed += uint80(grown);
        buckets[id] = Bucket({allowance: uint80(allowance - grown), since: uint40(block.timestamp)});
    }

    /// @notice End the work of accounts that are gone. It takes no pay from them: for `TAIL` anyone can show
    /// seals, and what was shown as earned is theirs for ever.
    function end(JobHeader calldata header, address[] calldata accounts, uint40 by, bytes calldata signature)
        external
    {
        bytes32 id = jobId(header);
        _checkTime(by);
        _checkSigner(
            header.coordinator, keccak256(abi.encode(END, id, keccak256(abi.encodePacked(accounts)), by)), signature
        );
        if (!jobs[id].opened) revert UnknownJob(id);
        for (uint256 i = 0; i < accounts.length; ++i) {
            _end(id, accounts[i]);
        }
    }

    // ---- accounts ----

    /// @notice Put `stake` of the account's balance behind its work in a job; it only rises.
    /// @param signature The account's; empty where it calls.
    function bond(bytes32 job, address account, uint80 stake, uint40 by, bytes calldata signature) external {
        _authorise(account, _bondHash(job, account, stake, by), by, signature);
        _working(job);
        if (!_bond(job, account, stake)) revert CannotBond(job, account, stake);
    }

    /// @notice `bond` for many accounts; what the time, the balance or the state does not allow is skipped.
    function bondMany(bytes32 job, SignedBond[] calldata list) external {
        _working(job);
        for (uint256 i = 0; i < list.length; ++i) {
            SignedBond calldata it = list[i];
            if (!_inTime(it.by)) continue;
            _checkSigner(it.account, _bondHash(job, it.account, it.stake, it.by), it.signature);
            _bond(job, it.account, it.stake);
        }
    }

    /// @notice Stop working in a job, and give back what of the limit is above `keep`.
    /// @param signature The account's; empty where it calls.
    function quit(bytes32 job, address account, uint80 keep, uint40 by, bytes calldata signature) external {
        _authorise(account, keccak256(abi.encode(QUIT, job, account, keep, by)), by, signature);
        if (!jobs[job].opened) revert UnknownJob(job);
        _lower(job, account, keep);
        _end(job, account);
    }

    /// @notice Pay `account` what a seal vests for it, up to its limit. Open to anyone, without a time limit.
    /// @param details What else the seal says, as one hash.
    /// @param sides Bit i is set where the i-th node of `path`, from the leaf up, stands on the left.
    function claim(
        JobHeader calldata header,
        bytes32 details,
        bytes calldata signature,
        address account,
        uint80 earned,
        uint80 vested,
        uint256 sides,
        bytes32[] calldata path
    ) external {
        bytes32 job = jobId(header);
        bytes32 root = PayTree.fold(PayTree.leaf(account, earned, vested), sides, path);
        _checkSeal(header.coordinator, job, root, details, signature);
        _pay(job, granted[job], account, earned, vested);
    }

    /// @notice `claim` for a whole subtree of the pay tree.
    /// @param leaves 40 bytes each: account, earned, vested. Of the leaves of the tree those from m * 2^k to
    /// (m + 1) * 2^k, or to the last one.
    function claimAll(
        JobHeader calldata header,
        bytes32 details,
        bytes calldata signature,
        bytes calldata leaves,
        uint256 sides,
        bytes32[] calldata path
    ) external {
        bytes32 job = jobId(header);
        _checkSeal(header.coordinator, job, PayTree.fold(PayTree.subtree(leaves), sides, path), details, signature);
        mapping(address => Granted) storage accounts = granted[job];
        for (uint256 offset = 0; offset < leaves.length; offset += PayTree.LEAF) {
            (address account, uint80 earned, uint80 vested) = PayTree.read(leaves, offset);
            _pay(job, accounts, account, earned, vested);
        }
    }

    /// @notice Free what ended `TAIL` ago: unspent limits go back to the budget, stakes to the accounts.
    /// Open to anyone; accounts that it is too early for are skipped.
    function release(bytes32 job, address[] calldata accounts) external {
        for (uint256 i = 0; i < accounts.length; ++i) {
            address account = accounts[i];
            uint256 ended = endOf(job, account);
            if (ended == 0 || block.timestamp < ended + TAIL) continue;
            _lower(job, account, 0);
            uint80 stake = bonds[job][account].stake;
            if (stake != 0) balances[account].amount += stake;
            delete bonds[job][account];
            granted[job][account].ended = false; // where the job goes on, the account may come back
            emit Released(job, account, stake);
        }
    }

    // ---- slashing ----

    /// @notice Announce that stake will be burned. `evidence` digests the audit file that shows why.
    function announce(bytes32 job, address account, uint80 amount, bytes32 evidence) external {
        if (msg.sender != slasher) revert NotSlasher(msg.sender);
        Bond storage it = bonds[job][account];
        uint256 ended = endOf(job, account);
        bool isOpen = it.slashAmount != 0 && block.timestamp < uint256(it.slashFrom) + EXECUTE;
        // An execution must be over before the stake is free.
        bool isLate = ended != 0 && block.timestamp + ANNOUNCE + EXECUTE >= ended + TAIL;
        if (amount == 0 || amount > it.stake || isOpen || isLate) revert CannotSlash(job, account);
        (it.slashAmount, it.slashFrom) = (amount, uint40(block.timestamp + ANNOUNCE));
        emit SlashAnnounced(job, account, amount, evidence);
    }

    /// @notice Burn what was announced, and end the account's work.
    function burn(bytes32 job, address account) external {
        if (msg.sender != slasher) revert NotSlasher(msg.sender);
        Bond storage it = bonds[job][account];
        uint256 from = it.slashFrom;
        uint80 amount = it.slashAmount; // at most the stake, which falls here and at `release` alone
        if (amount == 0 || block.timestamp < from || block.timestamp >= from + EXECUTE) {
            revert CannotSlash(job, account);
        }
        (it.stake, it.slashAmount, it.slashFrom) = (it.stake - amount, 0, 0);
        balances[BURN].amount += amount;
        emit Burned(job, account, amount);
        _end(job, account);
    }

    /// @notice Take back an announced slash.
    function drop(bytes32 job, address account) external {
        if (msg.sender != slasher && msg.sender != canceller) revert NotSlasher(msg.sender);
        Bond storage it = bonds[job][account];
        if (it.slashAmount == 0) revert CannotSlash(job, account);
        (it.slashAmount, it.slashFrom) = (0, 0);
        emit SlashDropped(job, account);
    }

    // ---- views ----

    /// @notice The id of a job: the EIP-712 struct hash of its header.
    /// @dev Without decoding each word: words with dirty high bits hash to an id that nobody opened.
    function jobId(JobHeader calldata header) public pure returns (bytes32 id) {
        bytes32 typehash = HEADER;
        assembly ("memory-safe") {
            let buffer := mload(0x40)
            mstore(buffer, typehash)
            calldatacopy(add(buffer, 0x20), header, 0x100)
            id := keccak256(buffer, 0x120)
        }
    }

    /// @notice When the account's work in the job ended, by itself or by the job's close; 0: it has not.
    function endOf(bytes32 job, address account) public view returns (uint256 ended) {
        ended = bonds[job][account].end;
        uint256 closedAt = jobs[job].closedAt;
        if (ended == 0 || (closedAt != 0 && closedAt < ended)) ended = closedAt;
    }

    // ---- inside ----

    function _pay(
        bytes32 job,
        mapping(address => Granted) storage accounts,
        address account,
        uint80 earned,
        uint80 vested
    ) private {
        Granted storage it = accounts[account];
        (uint80 limit, uint80 claimed, uint80 shown, bool ended) = (it.limit, it.claimed, it.earned, it.ended);
        uint80 due = vested < limit ? vested : limit;
        if (earned < vested) earned = vested;
        if (earned > limit) earned = limit;
        if (earned < shown) earned = shown;
        if (due < claimed) due = claimed;
        if (due == claimed && earned == shown) return;
        accounts[account] = Granted({limit: limit, claimed: due, earned: earned, ended: ended});
        unchecked {
            due -= claimed;
        }
        if (due != 0) balances[account].amount += due;
        emit Claimed(job, account, due, earned);
    }

    /// @dev Raises limits by at most `room` in all, and returns by how much.
    function _raise(bytes32 job, uint256[] calldata limits, uint256 room) private returns (uint256 grown) {
        mapping(address => Granted) storage accounts = granted[job];
        for (uint256 i = 0; i < limits.length; ++i) {
            (address account, uint256 limit) = (address(uint160(limits[i] >> 96)), uint96(limits[i]));
            Granted storage it = accounts[account];
            uint256 before = it.limit;
            if (it.ended || limit <= before || limit - before > room - grown) continue;
            grown += limit - before;
            it.limit = uint80(limit); // limit <= committed + room <= funded
            emit LimitSet(job, account, uint80(limit));
        }
    }

    /// @dev Lowers a limit to the most of `keep`, what was claimed and what was shown as earned, if that is less.
    function _lower(bytes32 job, address account, uint80 keep) private {
        Granted storage it = granted[job][account];
        uint80 limit = it.limit;
        if (keep < it.claimed) keep = it.claimed;
        if (keep < it.earned) keep = it.earned;
        if (keep >= limit) return;
        jobs[job].committed -= limit - keep;
        it.limit = keep;
        emit LimitSet(job, account, keep);
    }

    function _end(bytes32 job, address account) private {
        Bond storage it = bonds[job][account];
        if (it.end != 0) return;
        it.end = uint40(block.timestamp);
        granted[job][account].ended = true;
        emit Ended(job, account);
    }

    function _bond(bytes32 job, address account, uint80 stake) private returns (bool) {
        Bond storage it = bonds[job][account];
        if (it.end != 0 || stake <= it.stake) return false;
        uint80 more = stake - it.stake;
        if (more > balances[account].amount) return false;
        balances[account].amount -= more;
        it.stake = stake;
        emit Bonded(job, account, stake);
        return true;
    }

    function _take(address account, uint96 amount) private {
        uint96 balance = balances[account].amount;
        if (amount > balance) revert InsufficientBalance(account, balance, amount);
        balances[account].amount = balance - amount;
    }

    /// @dev A token bucket: full when it was never used, refilled by the hour, rounded down.
    function _allowance(JobHeader calldata header, Bucket storage bucket) private view returns (uint256 allowance) {
        uint256 since = bucket.since;
        if (since == 0) return header.burst;
        allowance = bucket.allowance + uint256(header.rate) * (block.timestamp - since) / 1 hours;
        if (allowance > header.burst) allowance = header.burst;
    }

    /// @dev The job, which must be open and not closed.
    function _working(bytes32 id) private view returns (Job storage job) {
        job = jobs[id];
        if (!job.opened) revert UnknownJob(id);
        if (job.closedAt != 0) revert JobIsClosed(id);
    }

    function _bondHash(bytes32 job, address account, uint80 stake, uint40 by) private pure returns (bytes32) {
        return keccak256(abi.encode(BOND, job, account, stake, by));
    }

    function _checkSeal(
        address coordinator,
        bytes32 job,
        bytes32 root,
        bytes32 details,
        bytes calldata signature
    ) private view {
        _checkSigner(coordinator, keccak256(abi.encode(SEAL, job, root, details)), signature);
    }

    /// @dev `party` calls, or signed this in time.
    function _authorise(address party, bytes32 structHash, uint40 by, bytes calldata signature) private view {
        if (msg.sender == party) return;
        if (signature.length == 0) revert WrongSigner(msg.sender, party);
        _checkTime(by);
        _checkSigner(party, structHash, signature);
    }

    function _inTime(uint40 by) private view returns (bool) {
        return block.timestamp <= by && by <= block.timestamp + MARGIN;
    }

    function _checkTime(uint40 by) private view {
        if (!_inTime(by)) revert NotInTime(by);
    }

    /// @dev OpenZeppelin's ECDSA refuses malleable and short signatures, and the zero address.
    function _checkSigner(address expected, bytes32 structHash, bytes calldata signature) private view {
        address signer = ECDSA.recoverCalldata(_hashTypedDataV4(structHash), signature);
        if (signer != expected) revert WrongSigner(signer, expected);
    }
}
