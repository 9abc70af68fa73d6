// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {JobEscrow} from "../src/JobEscrow.sol";
import {Parameters} from "../src/Parameters.sol";
import {PayTree} from "../src/PayTree.sol";
import {Deployed} from "./Deployed.sol";

/// @dev The library, for calldata.
contract PayTrees {
    function leaf(address account, uint80 earned, uint80 vested) external pure returns (bytes32) {
        return PayTree.leaf(account, earned, vested);
    }

    function subtree(bytes calldata leaves) external pure returns (bytes32) {
        return PayTree.subtree(leaves);
    }

    function fold(bytes32 node, uint256 sides, bytes32[] calldata path) external pure returns (bytes32) {
        return PayTree.fold(node, sides, path);
    }
}

/// @dev contracts/vectors.json, written by tests/contracts/make_vectors.py from the Python side.
contract VectorsTest is Deployed {
    string internal json;
    PayTrees internal trees;

    function setUp() public override {
        super.setUp();
        json = vm.readFile("../vectors.json");
        trees = new PayTrees();
    }

    function test_vectors__header__hashes_to_the_id_of_the_job() public view {
        for (uint256 i = 0; _has(".headers", i); ++i) {
            string memory place = _at(".headers", i);
            JobEscrow.JobHeader memory header = abi.decode(_bytes(place, ".encoded"), (JobEscrow.JobHeader));
            assertEq(escrow.jobId(header), _word(place, ".id"), "id");
        }
    }

    /// @dev The life of a job, signed by Python's wallets, at the address that their domain names.
    function test_vectors__history_of_signed_messages__is_what_the_contract_takes() public {
        address place = vm.parseJsonAddress(json, ".domain.escrow");
        vm.etch(place, address(escrow).code);
        escrow = JobEscrow(place);
        vm.warp(vm.parseJsonUint(json, ".now"));
        vm.chainId(vm.parseJsonUint(json, ".domain.chainId"));
        assertEq(domainSeparator(), vm.parseJsonBytes32(json, ".domain.separator"), "domain separator");
        (address payer, address account) = (_signer(0), _signer(1));
        give(payer, 1000e6);
        give(account, 8e6);
        vm.prank(account);
        escrow.deposit(account, 8e6);

        for (uint256 i = 0; _has(".history", i); ++i) {
            _checkDigest(_at(".history", i));
        }
        JobEscrow.JobHeader memory header = abi.decode(_data(0), (JobEscrow.JobHeader));
        bytes32 job = escrow.open(header, _signature(0));
        _bonds(job, account);
        _grants(header);
        _claims(header, account);
        _leaves(header, account);
    }

    function test_vectors__messages_between_parties__same_hashes() public {
        vm.chainId(vm.parseJsonUint(json, ".domain.chainId"));
        escrow = JobEscrow(vm.parseJsonAddress(json, ".domain.escrow"));
        for (uint256 i = 0; _has(".messages", i); ++i) {
            string memory place = _at(".messages", i);
            bytes memory words = abi.encodePacked(_word(place, ".typeHash"), _bytes(place, ".encoded"));
            assertEq(keccak256(words), _word(place, ".structHash"), place);
            _checkDigest(place);
        }
    }

    function test_vectors__pay_trees() public view {
        for (uint256 i = 0; _has(".payTrees", i); ++i) {
            string memory place = _at(".payTrees", i);
            address[] memory accounts = vm.parseJsonAddressArray(json, string.concat(place, ".accounts"));
            (uint256[] memory earned, uint256[] memory vested) = (_uints(place, ".earned"), _uints(place, ".vested"));
            bytes32[] memory nodes = new bytes32[](accounts.length);
            for (uint256 k = 0; k < nodes.length; ++k) {
                nodes[k] = trees.leaf(accounts[k], uint80(earned[k]), uint80(vested[k]));
            }
            _checkFolds(place, nodes);
        }
    }

    function test_vectors__subtrees() public view {
        for (uint256 i = 0; _has(".subtrees", i); ++i) {
            string memory place = _at(".subtrees", i);
            bytes[] memory leaves = vm.parseJsonBytesArray(json, string.concat(place, ".leaves"));
            bytes32[] memory nodes = new bytes32[](leaves.length);
            for (uint256 k = 0; k < nodes.length; ++k) {
                nodes[k] = trees.subtree(leaves[k]);
            }
            _checkFolds(place, nodes);
        }
    }

    /// @dev No contract reads a batch; its nodes are those of the pay tree.
    function test_vectors__batches() public view {
        for (uint256 i = 0; _has(".batches", i); ++i) {
            string memory place = _at(".batches", i);
            (bytes32[] memory jobs, bytes32[] memory signed) = (_words(place, ".jobs"), _words(place, ".seals"));
            uint256[] memory steps = _uints(place, ".steps");
            bytes32[] memory nodes = new bytes32[](jobs.length);
            for (uint256 k = 0; k < nodes.length; ++k) {
                nodes[k] = keccak256(abi.encodePacked(hex"05", jobs[k], uint64(steps[k]), signed[k]));
            }
            _checkFolds(place, nodes);
        }
    }

    function test_vectors__anchorChains() public {
        for (uint256 i = 0; _has(".anchor_chains", i); ++i) {
            string memory place = _at(".anchor_chains", i);
            address caller = address(uint160(0x1A7E + i));
            uint256[] memory blocks = _uints(place, ".blocks");
            (bytes32[] memory roots, bytes32[] memory beacons) = (_words(place, ".roots"), _words(place, ".beacons"));
            (bytes32[] memory anchored, bytes32[] memory recorded) =
                (_words(place, ".anchored"), _words(place, ".recorded"));
            for (uint256 k = 0; k < blocks.length; ++k) {
                vm.roll(blocks[k]);
                vm.prank(caller);
                seals.anchor(roots[k]);
                _checkAnchorChain(caller, anchored[k]);
                vm.store(HISTORY, bytes32(blocks[k] % 8191), beacons[k]);
                if (k + 1 < blocks.length && k % 2 == 0) continue; // the next anchor records it
                vm.roll(beacons[k] == 0 ? blocks[k] + 8192 : blocks[k] + 1);
                seals.record(caller);
                _checkAnchorChain(caller, recorded[k]);
            }
        }
    }

    function test_vectors__parameter_bounds() public view {
        (uint256[] memory lowest, uint256[] memory highest) =
            (_uints(".parameters", ".lowest"), _uints(".parameters", ".highest"));
        assertEq(lowest.length, parameters.NUM_KEYS(), "keys");
        for (uint256 i = 0; i < lowest.length; ++i) {
            (uint64 min, uint64 max) = parameters.bounds(Parameters.Key(i));
            assertEq(min, lowest[i], "lowest");
            assertEq(max, highest[i], "highest");
        }
    }

    // ---- the messages of the history, by their place ----

    function _bonds(bytes32 job, address account) private {
        (bytes32 id, address who, uint80 stake, uint40 by) = abi.decode(_data(1), (bytes32, address, uint80, uint40));
        assertTrue(id == job && who == account, "the account's bond in this job");
        escrow.bond(id, who, stake, by, _signature(1));
        assertEq(stakeOf(job, account), stake, "stake");
    }

    function _grants(JobEscrow.JobHeader memory header) private {
        (bytes32 job, uint256[] memory limits, uint40 by) = abi.decode(_data(2), (bytes32, uint256[], uint40));
        escrow.grant(header, limits, by, _signature(2));
        for (uint256 i = 0; i < limits.length; ++i) {
            assertEq(limitOf(job, address(uint160(limits[i] >> 96))), uint96(limits[i]), "limit");
        }
    }

    function _claims(JobEscrow.JobHeader memory header, address account) private {
        (, bytes32 root, bytes32 details) = abi.decode(_data(3), (bytes32, bytes32, bytes32));
        string memory tree = ".payTrees[2]";
        assertEq(root, _word(tree, ".root"), "root");
        address[] memory accounts = vm.parseJsonAddressArray(json, string.concat(tree, ".accounts"));
        uint256 k = 0;
        while (accounts[k] != account) ++k;
        uint80 earned = uint80(_uints(tree, ".earned")[k]);
        uint80 vested = uint80(_uints(tree, ".vested")[k]);
        uint256 sides = _uints(tree, ".sides")[k];
        escrow.claim(header, details, _signature(3), account, earned, vested, sides, _path(tree, k));
        assertEq(free(account), 3e6 + vested, "paid");
    }

    function _leaves(JobEscrow.JobHeader memory header, address account) private {
        (bytes32 job,, uint80 keep, uint40 by) = abi.decode(_data(4), (bytes32, address, uint80, uint40));
        escrow.quit(job, account, keep, by, _signature(4));
        address[] memory gone;
        (, gone, by) = abi.decode(_data(5), (bytes32, address[], uint40));
        escrow.end(header, gone, by, _signature(5));
        for (uint256 i = 0; i < gone.length; ++i) {
            (, uint40 ended,,) = escrow.bonds(job, gone[i]);
            assertEq(ended, vm.getBlockTimestamp(), "ended");
        }
        (, by) = abi.decode(_data(6), (bytes32, uint40));
        escrow.close(header, by, _signature(6));
        (,, uint40 closedAt,) = escrow.jobs(job);
        assertEq(closedAt, vm.getBlockTimestamp(), "closed");
        (, uint96 amount, uint96 fee, uint32 number, uint40 until) =
            abi.decode(_data(7), (address, uint96, uint96, uint32, uint40));
        escrow.withdrawFor(account, amount, fee, number, until, _signature(7));
        assertEq(token.balanceOf(account), amount - fee, "withdrawn");
    }

    function _data(uint256 index) private view returns (bytes memory) {
        return _bytes(_at(".history", index), ".encoded");
    }

    function _signature(uint256 index) private view returns (bytes memory) {
        return _bytes(_at(".history", index), ".signature");
    }

    function _signer(uint256 index) private view returns (address) {
        return vm.parseJsonAddress(json, string.concat(_at(".history", index), ".signer"));
    }

    // ---- checks ----

    function _checkDigest(string memory place) private view {
        string memory name = vm.parseJsonString(json, string.concat(place, ".name"));
        string memory kind = vm.parseJsonString(json, string.concat(place, ".typeString"));
        assertEq(keccak256(bytes(kind)), _word(place, ".typeHash"), name);
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", domainSeparator(), _word(place, ".structHash")));
        assertEq(digest, _word(place, ".digest"), name);
        address signer = ECDSA.recover(digest, _bytes(place, ".signature"));
        assertEq(signer, vm.parseJsonAddress(json, string.concat(place, ".signer")), name);
    }

    function _checkFolds(string memory place, bytes32[] memory nodes) private view {
        uint256[] memory sides = _uints(place, ".sides");
        assertEq(sides.length, nodes.length, "a path for every node");
        for (uint256 k = 0; k < nodes.length; ++k) {
            assertEq(trees.fold(nodes[k], sides[k], _path(place, k)), _word(place, ".root"), place);
        }
    }

    function _checkAnchorChain(address caller, bytes32 wanted) private view {
        (bytes32 anchorChain,) = seals.anchorChain(caller);
        assertEq(anchorChain, wanted, "anchor chain");
    }

    // ---- the file ----

    function _path(string memory place, uint256 index) private view returns (bytes32[] memory path) {
        bytes memory joined = vm.parseJsonBytesArray(json, string.concat(place, ".paths"))[index];
        path = new bytes32[](joined.length / 32);
        for (uint256 i = 0; i < path.length; ++i) {
            bytes32 word;
            assembly ("memory-safe") {
                word := mload(add(add(joined, 0x20), mul(i, 0x20)))
            }
            path[i] = word;
        }
    }

    function _at(string memory list, uint256 index) private pure returns (string memory) {
        return string.concat(list, "[", vm.toString(index), "]");
    }

    function _has(string memory list, uint256 index) private view returns (bool) {
        return vm.keyExistsJson(json, _at(list, index));
    }

    function _bytes(string memory place, string memory key) private view returns (bytes memory) {
        return vm.parseJsonBytes(json, string.concat(place, key));
    }

    function _word(string memory place, string memory key) private view returns (bytes32) {
        return vm.parseJsonBytes32(json, string.concat(place, key));
    }

    function _uints(string memory place, string memory key) private view returns (uint256[] memory) {
        return vm.parseJsonUintArray(json, string.concat(place, key));
    }

    function _words(string memory place, string memory key) private view returns (bytes32[] memory) {
        return vm.parseJsonBytes32Array(json, string.concat(place, key));
    }
}
