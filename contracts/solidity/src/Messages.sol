// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title What parties sign, as the chain reads it (EIP-712), and what a job's id is made of.
/// @notice Field order and type strings equal `contracts/terms/typed_data.py`; `vectors.json` holds
/// values that both sides must produce. Amounts are base units (1e-6 token), times are Unix seconds.
/// @dev Every message, whichever contract checks it, is signed under the domain of Settlement.
library Messages {
    /// @notice What the poster signs. `details` digests the whole job description.
    struct JobSpec {
        address poster;
        address coordinator;
        bytes32 details;
        uint96 budget;
        uint96 epochCap;
        uint64 deadline;
        uint256 nonce;
    }

    /// @notice The part of a job that its id binds; shown again in calldata instead of being stored.
    struct JobHeader {
        address poster;
        address coordinator;
        bytes32 specHash;
        uint96 epochCap;
        uint64 deadline;
        uint256 nonce;
    }

    /// @notice What the coordinator signs once per step.
    struct Seal {
        bytes32 job;
        uint64 step;
        bytes32 previous;
        bytes32 messagesRoot;
        uint64 gradientNorm;
        bytes32 payRoot;
        uint96 earned;
        uint96 vested;
        bool last;
    }

    /// @notice A wallet's 65 bytes in words, where calldata is dear.
    struct Signature {
        bytes32 r;
        bytes32 s;
        uint8 v;
    }

    /// @notice What a provider signs to bind an offer to a job.
    struct LeaseAccept {
        bytes32 job;
        address account;
        bytes32 sessionKey;
        uint64 price;
        uint96 stake;
        bytes32 details;
    }

    /// @notice What the coordinator signs before the first step.
    struct JobOpening {
        bytes32 job;
        bytes32 sessionKey;
        address anchorer;
        uint64 openingBlock;
        bytes32 details;
    }

    /// @notice What a provider signs to be matched.
    struct Offer {
        address account;
        bytes32 sessionKey;
        uint64 price;
        uint64 expiresAt;
        bytes32 details;
    }

    /// @notice In place of a vested total: what the closing of a job found to be due.
    uint96 internal constant WHATEVER_IS_DUE = type(uint96).max;

    bytes32 internal constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 internal constant DOMAIN_NAME = keccak256("Tallystick");
    bytes32 internal constant DOMAIN_VERSION = keccak256("1");

    bytes32 internal constant JOB_SPEC_TYPEHASH = keccak256(
        "JobSpec(address poster,address coordinator,bytes32 details,uint96 budget,uint96 epochCap,uint64 deadline,uint256 nonce)"
    );
    bytes32 internal constant JOB_OPENING_TYPEHASH = keccak256(
        "JobOpening(bytes32 job,bytes32 sessionKey,address anchorer,uint64 openingBlock,bytes32 details)"
    );
    bytes32 internal constant OFFER_TYPEHASH =
        keccak256("Offer(address account,bytes32 sessionKey,uint64 price,uint64 expiresAt,bytes32 details)");
    bytes32 internal constant LEASE_ACCEPT_TYPEHASH = keccak256(
        "LeaseAccept(bytes32 job,address account,bytes32 sessionKey,uint64 price,uint96 stake,bytes32 details)"
    );
    bytes32 internal constant SEAL_TYPEHASH = keccak256(
        "Seal(bytes32 job,uint64 step,bytes32 previous,bytes32 messagesRoot,uint64 gradientNorm,bytes32 payRoot,uint96 earned,uint96 vested,bool last)"
    );

    /// @notice The id under which a job is escrowed, settled and named by every message.
    /// @dev `keccak256(abi.encode(header))` without decoding each word. Words with dirty high bits
    /// hash to an id that no job has.
    function jobId(JobHeader calldata header) internal pure returns (bytes32 id) {
        assembly ("memory-safe") {
            let buffer := mload(0x40)
            calldatacopy(buffer, header, 0xc0)
            id := keccak256(buffer, 0xc0)
        }
    }

    /// @notice `jobId` of a header in memory.
    function jobIdOf(JobHeader memory header) internal pure returns (bytes32) {
        return keccak256(abi.encode(header));
    }

    /// @notice The header that follows from a signed spec.
    function headerOf(JobSpec calldata spec) internal pure returns (JobHeader memory) {
        return JobHeader({
            poster: spec.poster,
            coordinator: spec.coordinator,
            specHash: hash(spec),
            epochCap: spec.epochCap,
            deadline: spec.deadline,
            nonce: spec.nonce
        });
    }

    function hash(JobSpec calldata message) internal pure returns (bytes32) {
        return keccak256(abi.encode(JOB_SPEC_TYPEHASH, message));
    }

    function hash(JobOpening calldata message) internal pure returns (bytes32) {
        return keccak256(abi.encode(JOB_OPENING_TYPEHASH, message));
    }

    function hash(Offer calldata message) internal pure returns (bytes32) {
        return keccak256(abi.encode(OFFER_TYPEHASH, message));
    }

    function hash(LeaseAccept calldata message) internal pure returns (bytes32) {
        return keccak256(abi.encode(LEASE_ACCEPT_TYPEHASH, message));
    }

    /// @dev `keccak256(abi.encode(SEAL_TYPEHASH, message))` without decoding each word. Words with
    /// dirty high bits hash to a struct that no wallet signed.
    function hash(Seal calldata message) internal pure returns (bytes32 structHash) {
        bytes32 typehash = SEAL_TYPEHASH;
        assembly ("memory-safe") {
            let buffer := mload(0x40)
            mstore(buffer, typehash)
            calldatacopy(add(buffer, 0x20), message, 0x120)
            structHash := keccak256(buffer, 0x140)
        }
    }

    /// @notice Domain separator of every Tallystick message on this chain.
    function domainSeparator(address settlement) internal view returns (bytes32) {
        return keccak256(abi.encode(DOMAIN_TYPEHASH, DOMAIN_NAME, DOMAIN_VERSION, block.chainid, settlement));
    }
}
