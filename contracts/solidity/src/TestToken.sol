// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title Play money for development chains: 6 decimals, EIP-2612 permit, a capped faucet.
/// @notice Never deployed where tokens are worth anything; the other contracts take any plain ERC-20.
contract TestToken is ERC20Permit {
    /// @dev Only the minter may open the faucet.
    error NotMinter(address caller);
    /// @dev One call asked for more than a call may give.
    error FaucetCallCap(uint256 asked, uint256 cap);
    /// @dev The account would have been given more than an account may get.
    error FaucetAccountCap(address account, uint256 given, uint256 cap);

    address public immutable minter;
    uint256 public immutable callCap;
    uint256 public immutable accountCap;

    /// @notice Base units that the faucet gave to an account so far.
    mapping(address account => uint256) public given;

    constructor(address minter_, uint256 callCap_, uint256 accountCap_)
        ERC20("Tallystick Test Token", "TALLY")
        ERC20Permit("Tallystick Test Token")
    {
        minter = minter_;
        callCap = callCap_;
        accountCap = accountCap_;
    }

    /// @notice 1 token = 1e6 base units.
    function decimals() public pure override returns (uint8) {
        return 6;
    }

    /// @notice Mint `amount` base units for `account`, within both caps.
    function faucet(address account, uint256 amount) external {
        if (msg.sender != minter) revert NotMinter(msg.sender);
        if (amount > callCap) revert FaucetCallCap(amount, callCap);
        uint256 total = given[account] + amount;
        if (total > accountCap) revert FaucetAccountCap(account, total, accountCap);
        given[account] = total;
        _mint(account, amount);
    }
}
