// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {JobEscrow} from "./JobEscrow.sol";

/// @title The money of finalised epochs, apart from budgets and stakes.
/// @notice Settlement decides, this contract only pays, and can reach nothing but what final epochs
/// moved here or left for it in the escrow.
/// @dev I3, I14: no pause, no owner; a payout never depends on anybody but the token.
contract PayoutVault {
    using SafeERC20 for IERC20;

    /// @dev Only Settlement orders payouts.
    error NotSettlement(address caller);

    IERC20 public immutable token;
    address public immutable settlement;
    JobEscrow public immutable escrow;

    constructor(IERC20 token_, address settlement_, JobEscrow escrow_) {
        token = token_;
        settlement = settlement_;
        escrow = escrow_;
    }

    /// @notice Pay `amount` to `account`; fetches what final epochs left in escrow when short.
    /// @param funded The total that all final epochs may pay, from Settlement.
    function pay(address account, uint96 amount, uint96 funded) external {
        if (msg.sender != settlement) revert NotSettlement(msg.sender);
        if (token.trySafeTransfer(account, amount)) return;
        escrow.release(funded);
        token.safeTransfer(account, amount);
    }
}
