// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {Messages} from "../src/Messages.sol";
import {Test} from "./Harness.sol";
import {MessageHashes} from "./Vectors.t.sol";

/// @dev Hashes taken straight from calldata equal those of decoded values.
contract MessagesTest is Test {
    MessageHashes internal hashes = new MessageHashes();

    function testFuzz_job_id__of_calldata__equals_abi_encode(Messages.JobHeader memory header) public view {
        (bytes32 id, bytes32 same) = hashes.jobId(header);
        assertEq(id, keccak256(abi.encode(header)), "of calldata");
        assertEq(same, id, "of memory");
    }

    function testFuzz_seal_hash__of_calldata__equals_abi_encode(Messages.Seal memory seal) public view {
        (bytes32 typehash, bytes32 structHash) = hashes.seal(seal);
        assertEq(structHash, keccak256(abi.encode(typehash, seal)), "struct hash");
    }

    function testFuzz_seal_hash__dirty_word__is_not_the_clean_hash(Messages.Seal memory seal, uint256 dirt)
        public
        view
    {
        bytes memory data = abi.encodeCall(MessageHashes.seal, (seal));
        dirt = dirt << 64 == 0 ? 1 << 64 : dirt << 64;
        assembly ("memory-safe") {
            let step := add(data, 0x44) // length, selector, first word
            mstore(step, or(mload(step), dirt))
        }
        (, bytes32 clean) = hashes.seal(seal);
        (bool ok, bytes memory answer) = address(hashes).staticcall(data);
        if (!ok) return; // refused while decoding
        (, bytes32 found) = abi.decode(answer, (bytes32, bytes32));
        assertTrue(found != clean, "another hash");
    }
}
