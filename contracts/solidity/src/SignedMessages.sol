// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import {Messages} from "./Messages.sol";

/// @title Who signed a struct hash, under the one domain that all messages share.
/// @dev OpenZeppelin's ECDSA refuses malleable and short signatures. The separator is cached for
/// the chain of deployment and derived anew when the chain id changed (replay across a fork).
abstract contract SignedMessages {
    /// @dev The seal belongs to another job.
    error WrongJob(bytes32 job, bytes32 sealed_);
    /// @dev A seal cannot vest more than was earned.
    error VestedAboveEarned(uint96 vested, uint96 earned);
    /// @dev The seal was not signed by the job's coordinator.
    error WrongCoordinator(address signer, address coordinator);
    /// @dev The message was not signed by the account that it names.
    error WrongSigner(address signer, address expected);

    address private immutable _verifyingContract;
    uint256 private immutable _cachedChainId;
    bytes32 private immutable _cachedSeparator;

    constructor(address verifyingContract) {
        _verifyingContract = verifyingContract;
        _cachedChainId = block.chainid;
        _cachedSeparator = Messages.domainSeparator(verifyingContract);
    }

    /// @notice EIP-712 domain separator: name "Tallystick", version "1", this chain, Settlement.
    function domainSeparator() public view returns (bytes32) {
        return block.chainid == _cachedChainId ? _cachedSeparator : Messages.domainSeparator(_verifyingContract);
    }

    /// @dev What `seal` vests in total, if it is a seal of `job` and `signer` is its coordinator.
    function _checkSeal(bytes32 job, address coordinator, Messages.Seal calldata seal, address signer)
        internal
        pure
        returns (uint96 vested)
    {
        if (signer != coordinator) revert WrongCoordinator(signer, coordinator);
        if (seal.job != job) revert WrongJob(job, seal.job);
        vested = seal.vested;
        if (vested > seal.earned) revert VestedAboveEarned(vested, seal.earned);
    }

    /// @dev Reverts with an ECDSA error unless `signature` is 65 bytes and canonical.
    function _signer(bytes32 structHash, bytes calldata signature) internal view returns (address) {
        return ECDSA.recoverCalldata(_digest(structHash), signature);
    }

    /// @dev The same for a signature in words.
    function _signer(bytes32 structHash, Messages.Signature calldata signature) internal view returns (address) {
        return ECDSA.recover(_digest(structHash), signature.v, signature.r, signature.s);
    }

    function _digest(bytes32 structHash) private view returns (bytes32) {
        return MessageHashUtils.toTypedDataHash(domainSeparator(), structHash);
    }
}
