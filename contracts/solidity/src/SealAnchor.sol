// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title When a batch of seals was fixed, and the coin that nobody knew then (docs/protocol.md 4).
/// @notice Each caller has a lane, a running hash of its anchors and their coins, that one storage
/// proof shows whole: lane' = keccak(lane, root, block) at the anchor, lane'' = keccak(lane', coin)
/// when the coin is recorded. The coin of a batch is the hash of the block that anchored it, asked in
/// a later block from the history contract of EIP-2935; after 8191 blocks it is zero, which means
/// "everything of that batch is drawn".
/// @dev No owner, no money, no upgrade. BLOCKHASH is not used: it answers wrong values on a restarted
/// development chain and reaches back 256 blocks only.
contract SealAnchor {
    /// @dev One anchor per caller and block: the coin of a block belongs to one batch of a lane.
    error AlreadyAnchored(address caller, uint256 blockNumber);
    /// @dev The caller has no anchor whose coin is missing.
    error NothingPending(address caller);
    /// @dev The anchoring block's hash exists from the next block on.
    error TooEarly(uint256 blockNumber);
    /// @dev This chain has no EIP-2935 history contract.
    error HistoryUnavailable(uint256 blockNumber);

    /// @notice `root` became the batch `index` of `caller`; `lane` is the running hash after it.
    event Anchored(address indexed caller, uint64 indexed index, bytes32 root, bytes32 lane);
    /// @notice The batch `index` of `caller`, anchored in `blockNumber`, has its coin.
    event Recorded(address indexed caller, uint64 indexed index, uint64 blockNumber, bytes32 coin);

    struct Lane {
        bytes32 hash;
        uint64 count;
        uint64 pendingBlock;
    }

    address internal constant HISTORY = 0x0000F90827F1C53a10cb7A02335B175320002935;
    uint256 internal constant HISTORY_BLOCKS = 8191;

    mapping(address caller => Lane) private _lanes;

    /// @notice Fold `root` into the caller's lane; records the previous batch's coin if it is missing.
    function anchor(bytes32 root) external {
        Lane memory lane_ = _lanes[msg.sender];
        if (lane_.pendingBlock == block.number) revert AlreadyAnchored(msg.sender, block.number);
        if (lane_.pendingBlock != 0) lane_.hash = _record(msg.sender, lane_);
        lane_.hash = keccak256(abi.encodePacked(lane_.hash, root, uint64(block.number)));
        emit Anchored(msg.sender, lane_.count, root, lane_.hash);
        lane_.count += 1;
        lane_.pendingBlock = uint64(block.number);
        _lanes[msg.sender] = lane_;
    }

    /// @notice Record the coin of `caller`'s newest batch. Open to anyone, from the next block on.
    function record(address caller) external {
        Lane memory lane_ = _lanes[caller];
        if (lane_.pendingBlock == 0) revert NothingPending(caller);
        if (lane_.pendingBlock == block.number) revert TooEarly(block.number);
        lane_.hash = _record(caller, lane_);
        lane_.pendingBlock = 0;
        _lanes[caller] = lane_;
    }

    /// @notice The caller's running hash and how many batches it has anchored.
    function lane(address caller) external view returns (bytes32 hash, uint64 count) {
        Lane storage lane_ = _lanes[caller];
        return (lane_.hash, lane_.count);
    }

    /// @notice The batch whose coin is missing and its block; block 0 if there is none.
    function pending(address caller) external view returns (uint64 index, uint64 blockNumber) {
        Lane storage lane_ = _lanes[caller];
        if (lane_.pendingBlock != 0) (index, blockNumber) = (lane_.count - 1, lane_.pendingBlock);
    }

    function _record(address caller, Lane memory lane_) private returns (bytes32) {
        bytes32 coin = _coin(lane_.pendingBlock);
        emit Recorded(caller, lane_.count - 1, lane_.pendingBlock, coin);
        return keccak256(abi.encodePacked(lane_.hash, coin));
    }

    function _coin(uint256 blockNumber) private view returns (bytes32) {
        if (block.number - blockNumber > HISTORY_BLOCKS) return bytes32(0);
        (bool ok, bytes memory answer) = HISTORY.staticcall(abi.encode(blockNumber));
        if (!ok || answer.length != 32) revert HistoryUnavailable(blockNumber);
        return bytes32(answer);
    }
}
