// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {SumTree} from "../src/SumTree.sol";
import {Test} from "./Harness.sol";
import {Trees} from "./Trees.sol";

/// @dev The library with calldata paths, as contracts see it.
contract Folds {
    function fold(bytes32 node, uint96 sum, uint256 sides, bytes calldata path)
        external
        pure
        returns (bytes32, uint96)
    {
        return SumTree.fold(node, sum, sides, path);
    }

    function foldReference(bytes32 node, uint96 sum, uint256 sides, bytes calldata path)
        external
        pure
        returns (bytes32, uint96)
    {
        return SumTree.foldReference(node, sum, sides, path);
    }

    function foldPay(bytes32 node, uint96 earned, uint96 vested, uint256 sides, bytes calldata path)
        external
        pure
        returns (bytes32, uint96, uint96)
    {
        return SumTree.foldPay(node, earned, vested, sides, path);
    }

    function foldBatch(bytes32 node, uint256 sides, bytes calldata path) external pure returns (bytes32) {
        return SumTree.foldBatch(node, sides, path);
    }
}

contract SumTreeTest is Test {
    Folds internal folds = new Folds();

    function testFuzz_fold__assembly__equals_reference(bytes32 node, uint96 sum, uint256 sides, bytes calldata path)
        public
        view
    {
        (bool ok, bytes memory answer) = address(folds).staticcall(abi.encodeCall(Folds.fold, (node, sum, sides, path)));
        (bool okToo, bytes memory expected) =
            address(folds).staticcall(abi.encodeCall(Folds.foldReference, (node, sum, sides, path)));
        assertTrue(ok == okToo, "both or none");
        assertEq(keccak256(answer), keccak256(expected), "answer or error");
    }

    function testFuzz_fold__whole_siblings__equals_reference(uint96 sum, uint256 sides, uint8 levels, uint256 seed)
        public
        view
    {
        bytes memory path;
        uint256 cap = type(uint96).max / 12; // sums that fit, and with more levels some that do not
        sum = uint96(sum % cap);
        for (uint256 i = 0; i < levels % 16; ++i) {
            bytes32 word = keccak256(abi.encode(seed, i));
            path = abi.encodePacked(path, word, uint96(uint256(word) % cap));
        }
        _compare(keccak256("leaf"), sum, sides, path);
    }

    function test_fold__sums_overflow__reverts() public {
        bytes memory path = abi.encodePacked(bytes32(0), type(uint96).max);
        vm.expectPartialRevert(SumTree.SumOverflow.selector);
        folds.fold(bytes32(0), 1, 0, path);
        vm.expectPartialRevert(SumTree.SumOverflow.selector);
        folds.foldPay(bytes32(0), 1, 0, 0, abi.encodePacked(path, uint96(0)));
        vm.expectPartialRevert(SumTree.SumOverflow.selector);
        folds.foldPay(bytes32(0), 0, 1, 1, abi.encodePacked(bytes32(0), uint96(0), type(uint96).max));
    }

    function test_fold__partial_sibling__reverts() public {
        vm.expectPartialRevert(SumTree.MalformedPath.selector);
        folds.fold(0, 0, 0, new bytes(43));
        vm.expectPartialRevert(SumTree.MalformedPath.selector);
        folds.foldPay(0, 0, 0, 0, new bytes(44));
        vm.expectPartialRevert(SumTree.MalformedPath.selector);
        folds.foldBatch(0, 0, new bytes(31));
    }

    function testFuzz_path__every_leaf_of_a_tree__leads_to_its_root(uint8 size, uint256 seed) public view {
        Trees.Payout[] memory payouts = new Trees.Payout[](bound(size, 1, 33));
        for (uint256 i = 0; i < payouts.length; ++i) {
            bytes32 word = keccak256(abi.encode(seed, i));
            payouts[i] = Trees.Payout(address(uint160(i + 1)), word, uint96(uint64(uint256(word))));
        }
        (bytes32 root, uint96 total) = Trees.settlementRoot(payouts);
        uint256 sum;
        for (uint256 i = 0; i < payouts.length; ++i) {
            Trees.Payout memory it = payouts[i];
            (uint256 sides, bytes memory path) = Trees.settlementPath(payouts, i);
            bytes32 leaf = SumTree.settlementLeaf(it.account, it.jobsRoot, it.cumulative);
            (bytes32 found, uint96 found2) = folds.fold(leaf, it.cumulative, sides, path);
            assertEq(found, root, "root");
            assertEq(found2, total, "sum");
            sum += it.cumulative;
        }
        assertEq(total, sum, "the root sums its leaves");
    }

    function testFuzz_path__every_leaf_of_a_pay_tree__leads_to_its_root(uint8 size, uint256 seed) public view {
        Trees.Pay[] memory pays = new Trees.Pay[](bound(size, 1, 33));
        for (uint256 i = 0; i < pays.length; ++i) {
            uint256 word = uint256(keccak256(abi.encode(seed, i)));
            pays[i] = Trees.Pay(address(uint160(i + 1)), uint96(uint64(word)), uint96(uint32(word)));
        }
        (bytes32 root, uint96 earned, uint96 vested) = Trees.payRoot(pays);
        for (uint256 i = 0; i < pays.length; ++i) {
            (uint256 sides, bytes memory path) = Trees.payPath(pays, i);
            bytes32 leaf = SumTree.payLeaf(pays[i].account, pays[i].earned, pays[i].vested);
            (bytes32 found, uint96 foundEarned, uint96 foundVested) =
                folds.foldPay(leaf, pays[i].earned, pays[i].vested, sides, path);
            assertEq(found, root, "root");
            assertTrue(foundEarned == earned && foundVested == vested, "sums");
            if (i == 0) assertEq(sides, 0, "the leftmost leaf has all siblings on the right");
        }
    }

    function testFuzz_fold__altered_path__leads_elsewhere(uint8 size, uint256 seed, uint256 bit) public view {
        Trees.Payout[] memory payouts = new Trees.Payout[](bound(size, 2, 17));
        for (uint256 i = 0; i < payouts.length; ++i) {
            payouts[i] = Trees.Payout(address(uint160(i + 1)), keccak256(abi.encode(seed, i)), uint96(i + 1));
        }
        (bytes32 root,) = Trees.settlementRoot(payouts);
        uint256 index = seed % payouts.length;
        (uint256 sides, bytes memory path) = Trees.settlementPath(payouts, index);
        bit %= path.length * 8;
        path[bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        Trees.Payout memory it = payouts[index];
        bytes32 leaf = SumTree.settlementLeaf(it.account, it.jobsRoot, it.cumulative);
        try folds.fold(leaf, it.cumulative, sides, path) returns (bytes32 found, uint96) {
            assertTrue(found != root, "another root");
        } catch {}
    }

    function _compare(bytes32 node, uint96 sum, uint256 sides, bytes memory path)
        private
        view
    {
        this.testFuzz_fold__assembly__equals_reference(node, sum, sides, path);
    }
}
