// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {EpochWindow} from "./EpochWindow.sol";
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
/// debits, and the sum of those debits is all that the root may add. After the challenge window
/// (`EpochWindow`) the epoch is final and anyone claims for anyone.
/// @dev All addresses are immutable, so a reader who trusts this contract finds the others in its code.
/// I3 paid <= funded = debits of final epochs. I4 claimed never falls and sums up to paid. I5, I6 what
/// can be claimed is in the final root, and under one root no more than its sum. I14 nobody can pause
/// claims. I15 the order of claims does not matter.
contract Settlement is EpochWindow, SignedMessages {
    struct Contracts {
        IERC20 token;
        JobEscrow escrow;
        StakeRegistry stakes;
        SealAnchor seals;
        PayoutVault vault;
        Parameters parameters;
    }

    /// @notice A job's order of pay. For a closed job the signature may be zero: then the seal is not
    /// read, and the job owes what its closing found to be due.
    struct Statement {
        Messages.JobHeader header;
        Messages.Seal seal;
        Messages.Signature signature;
    }

    /// @dev Only the proposer posts epochs.
    error NotProposer(address caller);
    /// @dev A contract at one of the given addresses belongs to another deployment.
    error WrongWiring(address found);
    /// @dev The root's sum must be what was funded plus the debits of this call.
    error WrongSum(uint96 given, uint256 expected);
    /// @dev No posted or disputed epoch waits to be booked.
    error NothingToFinalize();
    /// @dev The leaf and its path do not lead to the final root.
    error WrongProof();
    /// @dev Everything that the leaf grants was paid.
    error NothingToClaim(address account, uint256 claimed);
    /// @dev Paying this would exceed what jobs were debited (I3).
    error ExceedsFunded(uint96 paid, uint96 amount, uint96 funded);

    event Claimed(address indexed account, uint96 amount, uint96 cumulative);

    IERC20 public immutable token;
    StakeRegistry public immutable stakes;
    SealAnchor public immutable seals;
    PayoutVault public immutable vault;
    address public immutable proposer;

    /// @notice Base units paid to an account so far.
    mapping(address account => uint256) public claimed;

    constructor(Contracts memory contracts, address proposer_, address disputes_)
        EpochWindow(contracts.escrow, contracts.parameters, disputes_)
        SignedMessages(address(this))
    {
        token = contracts.token;
        stakes = contracts.stakes;
        seals = contracts.seals;
        vault = contracts.vault;
        proposer = proposer_;
        if (contracts.escrow.settlement() != address(this)) revert WrongWiring(address(contracts.escrow));
        if (contracts.escrow.vault() != address(contracts.vault)) revert WrongWiring(address(contracts.escrow));
        if (contracts.stakes.settlement() != address(this)) revert WrongWiring(address(contracts.stakes));
        if (contracts.vault.settlement() != address(this)) revert WrongWiring(address(contracts.vault));
        if (address(contracts.vault.escrow()) != address(contracts.escrow)) revert WrongWiring(address(contracts.vault));
    }

    /// @notice Post the next epoch: debit every job by its statement and start the challenge window.
    /// @param rootSum Sum of `root`; must equal the funded total plus the debits, computed here.
    function propose(uint48 epoch, bytes32 root, uint96 rootSum, Statement[] calldata statements) external {
        if (msg.sender != proposer) revert NotProposer(msg.sender);
        Totals memory sums = _mayFollow(epoch);
        (uint64 challengeWindow, uint64 minEpochLength, uint64 maxEpochCap) = parameters.epochTerms();
        uint256 sum = sums.funded;
        for (uint256 i = 0; i < statements.length; ++i) {
            sum += _debit(statements[i], epoch, maxEpochCap, sums.newestRejected);
        }
        if (sum != rootSum) revert WrongSum(rootSum, sum);
        _post(epoch, root, rootSum, sums.secondIsFinal, challengeWindow, minEpochLength);
    }

    /// @notice Book an epoch whose window is over as final and move its money to the vault. Open to anyone.
    function finalize() external {
        Epoch memory newest = _newest;
        if (!_isPending(newest)) revert NothingToFinalize();
        uint96 funded = _finalized(newest).funded;
        _newest.state = EpochState.Final;
        escrow.release(funded);
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
        uint256 before = claimed[account];
        if (cumulative <= before) revert NothingToClaim(account, before);
        uint96 amount = cumulative - uint96(before); // only uint96 values are ever written
        if (amount > sums.funded - sums.paid) revert ExceedsFunded(sums.paid, amount, sums.funded);
        claimed[account] = cumulative;
        _setTotals(sums.funded, sums.paid + amount, sums.newestRejected, sums.secondIsFinal);
        emit Claimed(account, amount, cumulative);
        vault.pay(account, amount, sums.funded);
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
}
