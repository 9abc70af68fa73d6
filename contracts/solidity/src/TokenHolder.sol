// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

/// @title How tokens come in: by allowance or permit, and exactly as many as were asked for.
/// @dev Callers book first and receive last; functions that receive are `nonReentrant`, because the
/// balance is read before and after the transfer.
abstract contract TokenHolder is ReentrancyGuardTransient {
    using SafeERC20 for IERC20;

    /// @notice An EIP-2612 permit for this contract.
    struct Permit {
        uint256 value;
        uint256 deadline;
        uint8 v;
        bytes32 r;
        bytes32 s;
    }

    /// @dev Nothing comes of nothing.
    error ZeroAmount();
    /// @dev The token delivered another amount than was asked for (fee on transfer).
    error WrongAmountReceived(uint256 asked, uint256 received);

    IERC20 public immutable token;

    constructor(IERC20 token_) {
        token = token_;
    }

    /// @dev A permit that fails is ignored: a front-runner may have used it; the allowance decides.
    function _permit(address owner, Permit calldata permit) internal {
        try IERC20Permit(address(token)).permit(
            owner, address(this), permit.value, permit.deadline, permit.v, permit.r, permit.s
        ) {} catch {}
    }

    function _receive(address from, uint256 amount) internal {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(from, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert WrongAmountReceived(amount, received);
    }
}
