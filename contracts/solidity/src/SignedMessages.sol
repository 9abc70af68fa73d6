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

    /// @dev Reverts with an ECDSA error unless `signature` is 65 bytes and canonical.
    function _signer(bytes32 structHash, bytes calldata signature) internal view returns (address) {
        return ECDSA.recoverCalldata(MessageHashUtils.toTypedDataHash(domainSeparator(), structHash), signature);
    }

    /// @dev Id of the job that `seal` is a valid-looking order of pay for, signed by its coordinator.
    function _checkSeal(Messages.JobHeader calldata header, Messages.Seal calldata seal, bytes calldata signature)
        internal
        view
        returns (bytes32 job)
    {
        job = Messages.jobId(header);
        if (seal.job != job) revert WrongJob(job, seal.job);
        if (seal.vested > seal.earned) revert VestedAboveEarned(seal.vested, seal.earned);
        address signer = _signer(Messages.hash(seal), signature);
        if (signer != header.coordinator) revert WrongCoordinator(signer, header.coordinator);
    }

    function _checkSeal(bytes32 job, address coordinator, Messages.Seal calldata seal, uint8 v, bytes32 r, bytes32 s) internal view {
        if (seal.job != job) revert WrongJob(job, seal.job);
        if (seal.vested > seal.earned) revert VestedAboveEarned(seal.vested, seal.earned);
        address signer = ECDSA.recover(MessageHashUtils.toTypedDataHash(domainSeparator(), Messages.hash(seal)), v, r, s);
        if (signer != coordinator) revert WrongCoordinator(signer, coordinator);
    }
}
