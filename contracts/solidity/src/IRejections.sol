// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title What the escrow asks Settlement before it books on top of an older debit.
interface IRejections {
    /// @notice Whether an epoch was rejected.
    function isRejected(uint48 epoch) external view returns (bool);
}
