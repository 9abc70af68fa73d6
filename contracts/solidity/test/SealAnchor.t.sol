// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {SealAnchor} from "../src/SealAnchor.sol";
import {Deployed} from "./Deployed.sol";

contract SealAnchorTest is Deployed {
    bytes32 internal constant ROOT = keccak256("root");

    function test_anchor__folds_root_and_block() public {
        vm.prank(stranger);
        seals.anchor(ROOT);
        (bytes32 hash, uint64 count) = seals.anchorChain(stranger);
        assertEq(hash, keccak256(abi.encodePacked(bytes32(0), ROOT, uint64(1000))), "anchor chain");
        assertEq(count, 1, "count");
        (uint64 index, uint64 blockNumber) = seals.pending(stranger);
        assertEq(index, 0, "index");
        assertEq(blockNumber, 1000, "block");
    }

    function test_anchor__twice_in_a_block__reverts() public {
        seals.anchor(ROOT);
        vm.expectPartialRevert(SealAnchor.AlreadyAnchored.selector);
        seals.anchor(ROOT);
        vm.prank(stranger); // another anchor chain
        seals.anchor(ROOT);
    }

    function test_anchor__next_block__records_the_beacon_before() public {
        bytes32 beacon = _hashOf(1000);
        seals.anchor(ROOT);
        (bytes32 first,) = seals.anchorChain(address(this));
        vm.roll(1001);
        seals.anchor(keccak256("second"));
        (bytes32 anchorChain, uint64 count) = seals.anchorChain(address(this));
        bytes32 recorded = keccak256(abi.encodePacked(first, beacon));
        assertEq(anchorChain, keccak256(abi.encodePacked(recorded, keccak256("second"), uint64(1001))), "anchor chain");
        assertEq(count, 2, "count");
    }

    function test_record__anyone_once_from_the_next_block() public {
        bytes32 beacon = _hashOf(1000);
        seals.anchor(ROOT);
        vm.expectPartialRevert(SealAnchor.TooEarly.selector);
        seals.record(address(this));
        (bytes32 before,) = seals.anchorChain(address(this));
        vm.roll(1001);
        vm.prank(stranger);
        seals.record(address(this));
        (bytes32 anchorChain,) = seals.anchorChain(address(this));
        assertEq(anchorChain, keccak256(abi.encodePacked(before, beacon)), "anchor chain");
        (, uint64 blockNumber) = seals.pending(address(this));
        assertEq(blockNumber, 0, "nothing pending");
        vm.expectPartialRevert(SealAnchor.NothingPending.selector);
        seals.record(address(this));
    }

    function test_record__same_anchor_chain_whoever_records() public {
        bytes32 beacon = _hashOf(1000);
        seals.anchor(ROOT);
        vm.prank(stranger);
        seals.anchor(ROOT);
        vm.roll(1001);
        seals.record(stranger); // recorded on its own ...
        vm.roll(1002);
        seals.anchor(ROOT); // ... or with the next anchor
        vm.prank(stranger);
        seals.anchor(ROOT);
        (bytes32 mine,) = seals.anchorChain(address(this));
        (bytes32 other,) = seals.anchorChain(stranger);
        assertEq(mine, other, "anchor chains");
        assertTrue(beacon != 0, "with a beacon");
    }

    function test_record__last_served_block__has_a_beacon() public {
        bytes32 beacon = _hashOf(1000);
        seals.anchor(ROOT);
        (bytes32 before,) = seals.anchorChain(address(this));
        vm.roll(1000 + 8191);
        seals.record(address(this));
        (bytes32 anchorChain,) = seals.anchorChain(address(this));
        assertEq(anchorChain, keccak256(abi.encodePacked(before, beacon)), "beacon");
    }

    function test_record__one_block_later__beacon_is_zero() public {
        seals.anchor(ROOT);
        (bytes32 before,) = seals.anchorChain(address(this));
        vm.roll(1000 + 8192);
        vm.expectEmit();
        emit SealAnchor.Recorded(address(this), 0, 1000, 0);
        seals.record(address(this));
        (bytes32 anchorChain,) = seals.anchorChain(address(this));
        assertEq(anchorChain, keccak256(abi.encodePacked(before, bytes32(0))), "zero beacon");
    }

    function test_record__chain_without_history__reverts() public {
        seals.anchor(ROOT);
        vm.etch(HISTORY, "");
        vm.roll(1001);
        vm.expectPartialRevert(SealAnchor.HistoryUnavailable.selector);
        seals.record(address(this));
        vm.roll(1000 + 8192); // nobody is stuck for ever
        seals.record(address(this));
    }

    function testFuzz_anchorChain__any_gaps__is_the_fold_of_roots_blocks_and_beacons(uint256 seed) public {
        bytes32 anchorChain;
        uint256 pendingBlock;
        for (uint256 i = 0; i < 6; ++i) {
            seed = uint256(keccak256(abi.encode(seed)));
            uint256 number = block.number + 1 + seed % (i == 3 ? 9000 : 50);
            vm.roll(number);
            if (pendingBlock != 0) {
                bytes32 beacon = number - pendingBlock > 8191 ? bytes32(0) : bytes32(keccak256(abi.encode(pendingBlock)));
                anchorChain = keccak256(abi.encodePacked(anchorChain, beacon));
            }
            bytes32 root = bytes32(seed);
            seals.anchor(root);
            _hashOf(number);
            anchorChain = keccak256(abi.encodePacked(anchorChain, root, uint64(number)));
            pendingBlock = number;
        }
        (bytes32 found,) = seals.anchorChain(address(this));
        assertEq(found, anchorChain, "anchor chain");
    }

    /// @dev Puts a block's hash where the system contract would have it by the next block.
    function _hashOf(uint256 number) private returns (bytes32 hash) {
        hash = keccak256(abi.encode(number));
        vm.store(HISTORY, bytes32(number % 8191), hash);
    }
}
