// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title When a batch of seals was fixed, and the beacon that nobody knew then (docs/protocol.md 4).
/// @notice Each caller has an anchor chain, a running hash of its anchors and their beacons, that one storage
/// proof shows whole: chain' = keccak(chain, root, block) at the anchor, chain'' = keccak(chain', beacon)
/// when the beacon is recorded. The beacon of a batch is the hash of the block that anchored it, asked in
/// a later block from the history contract of EIP-2935; after 8191 blocks it is zero, which means
/// "everything of that batch is drawn".
/// @dev No owner, no money, no upgrade. BLOCKHASH is not used: it answers wrong values on a restarted
/// development chain and reaches back 256 blocks only.
contract SealAnchor {
    /// @dev One anchor per caller and block: the beacon of a block belongs to one batch of an anchor chain.
    error AlreadyAnchored(address caller, uint256 blockNumber);
    /// @dev The caller has no anchor whose beacon is missing.
    error NothingPending(address caller);
    /// @dev The anchoring block's hash exists from the next block on.
    error TooEarly(uint256 blockNumber);
    /// @dev This chain has no EIP-2935 history contract.
    error HistoryUnavailable(uint256 blockNumber);

    /// @notice `root` became the batch `index` of `caller`; `anchorChain` is the running hash after it.
    event Anchored(address indexed caller, uint64 indexed index, bytes32 root, bytes32 anchorChain);
    /// @notice The batch `index` of `caller`, anchored in `blockNumber`, has its beacon.
    event Recorded(address indexed caller, uint64 indexed index, uint64 blockNumber, bytes32 beacon);

    struct AnchorChain {
        bytes32 hash;
        uint64 count;
        uint64 pendingBlock;
    }

    address internal constant HISTORY = 0x0000F90827F1C53a10cb7A02335B175320002935;
    uint256 internal constant HISTORY_BLOCKS = 8191;

    mapping(address caller => AnchorChain) private _anchorChains;

    /// @notice Fold `root` into the caller's anchor chain; records the previous batch's beacon if it is missing.
    function anchor(bytes32 root) external {
        AnchorChain memory anchorChain_ = _anchorChains[msg.sender];
        if (anchorChain_.pendingBlock == block.number) revert AlreadyAnchored(msg.sender, block.number);
        if (anchorChain_.pendingBlock != 0) anchorChain_.hash = _record(msg.sender, anchorChain_);
        anchorChain_.hash = keccak256(abi.encodePacked(anchorChain_.hash, root, uint64(block.number)));
        emit Anchored(msg.sender, anchorChain_.count, root, anchorChain_.hash);
        anchorChain_.count += 1;
        anchorChain_.pendingBlock = uint64(block.number);
        _anchorChains[msg.sender] = anchorChain_;
    }

    /// @notice Record the beacon of `caller`'s newest batch. Open to anyone, from the next block on.
    function record(address caller) external {
        AnchorChain memory anchorChain_ = _anchorChains[caller];
        if (anchorChain_.pendingBlock == 0) revert NothingPending(caller);
        if (anchorChain_.pendingBlock == block.number) revert TooEarly(block.number);
        anchorChain_.hash = _record(caller, anchorChain_);
        anchorChain_.pendingBlock = 0;
        _anchorChains[caller] = anchorChain_;
    }

    /// @notice The caller's running hash and how many batches it has anchored.
    function anchorChain(address caller) external view returns (bytes32 hash, uint64 count) {
        AnchorChain storage anchorChain_ = _anchorChains[caller];
        return (anchorChain_.hash, anchorChain_.count);
    }

    /// @notice The batch whose beacon is missing and its block; block 0 if there is none.
    function pending(address caller) external view returns (uint64 index, uint64 blockNumber) {
        AnchorChain storage anchorChain_ = _anchorChains[caller];
        if (anchorChain_.pendingBlock != 0) (index, blockNumber) = (anchorChain_.count - 1, anchorChain_.pendingBlock);
    }

    function _record(address caller, AnchorChain memory anchorChain_) private returns (bytes32) {
        bytes32 beacon = _beacon(anchorChain_.pendingBlock);
        emit Recorded(caller, anchorChain_.count - 1, anchorChain_.pendingBlock, beacon);
        return keccak256(abi.encodePacked(anchorChain_.hash, beacon));
    }

    function _beacon(uint256 blockNumber) private view returns (bytes32) {
        if (block.number - blockNumber > HISTORY_BLOCKS) return bytes32(0);
        (bool ok, bytes memory answer) = HISTORY.staticcall(abi.encode(blockNumber));
        if (!ok || answer.length != 32) revert HistoryUnavailable(blockNumber);
        return bytes32(answer);
    }
}
