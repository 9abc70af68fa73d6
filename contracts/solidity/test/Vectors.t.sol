// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EpochWindow} from "../src/EpochWindow.sol";
import {Messages} from "../src/Messages.sol";
import {Parameters} from "../src/Parameters.sol";
import {Settlement} from "../src/Settlement.sol";
import {SumTree} from "../src/SumTree.sol";
import {Deployed} from "./Deployed.sol";
import {Folds} from "./SumTree.t.sol";

/// @dev The library's hashes of calldata messages, for all six.
contract MessageHashes {
    function jobId(Messages.JobHeader calldata header) external pure returns (bytes32, bytes32) {
        return (Messages.jobId(header), Messages.jobIdOf(header));
    }

    function jobSpec(Messages.JobSpec calldata it) external pure returns (bytes32, bytes32) {
        return (Messages.JOB_SPEC_TYPEHASH, Messages.hash(it));
    }

    function jobOpening(Messages.JobOpening calldata it) external pure returns (bytes32, bytes32) {
        return (Messages.JOB_OPENING_TYPEHASH, Messages.hash(it));
    }

    function offer(Messages.Offer calldata it) external pure returns (bytes32, bytes32) {
        return (Messages.OFFER_TYPEHASH, Messages.hash(it));
    }

    function leaseAccept(Messages.LeaseAccept calldata it) external pure returns (bytes32, bytes32) {
        return (Messages.LEASE_ACCEPT_TYPEHASH, Messages.hash(it));
    }

    function seal(Messages.Seal calldata it) external pure returns (bytes32, bytes32) {
        return (Messages.SEAL_TYPEHASH, Messages.hash(it));
    }

    function domainSeparator(address settlement) external view returns (bytes32) {
        return Messages.domainSeparator(settlement);
    }
}

/// @dev contracts/vectors.json, written by tests/contracts/make_vectors.py from the Python side.
contract VectorsTest is Deployed {
    string internal json;
    Folds internal folds;
    MessageHashes internal library_;

    function setUp() public override {
        super.setUp();
        json = vm.readFile("../vectors.json");
        folds = new Folds();
        library_ = new MessageHashes();
    }

    function test_vectors__typed_data__same_hashes_digests_and_signers() public {
        vm.chainId(vm.parseJsonUint(json, ".domain.chainId"));
        bytes32 separator = library_.domainSeparator(vm.parseJsonAddress(json, ".domain.settlement"));
        assertEq(separator, vm.parseJsonBytes32(json, ".domain.separator"), "domain separator");
        for (uint256 i = 0; _has(".messages", i); ++i) {
            string memory place = _at(".messages", i);
            string memory name = _string(place, ".name");
            (bytes32 typehash, bytes32 structHash) = _hash(name, _bytes(place, ".encoded"));
            assertEq(typehash, _word(place, ".typeHash"), name);
            assertEq(typehash, keccak256(bytes(_string(place, ".typeString"))), name);
            assertEq(structHash, _word(place, ".structHash"), name);
            bytes32 digest = keccak256(abi.encodePacked(hex"1901", separator, structHash));
            assertEq(digest, _word(place, ".digest"), name);
            address signer = ECDSA.recover(digest, _bytes(place, ".signature"));
            assertEq(signer, vm.parseJsonAddress(json, string.concat(place, ".signer")), name);
        }
    }

    function test_vectors__job_ids() public view {
        for (uint256 i = 0; _has(".jobs", i); ++i) {
            string memory place = _at(".jobs", i);
            Messages.JobHeader memory header = abi.decode(_bytes(place, ".encoded"), (Messages.JobHeader));
            (bytes32 id, bytes32 same) = library_.jobId(header);
            assertEq(id, _word(place, ".id"), "id of calldata");
            assertEq(same, id, "id of memory");
        }
    }

    function test_vectors__settlement_trees() public view {
        for (uint256 i = 0; _has(".settlementTrees", i); ++i) {
            string memory place = _at(".settlementTrees", i);
            uint256[] memory sums = _uints(place, ".cumulatives");
            address[] memory accounts = _addresses(place, ".accounts");
            bytes32[] memory roots = _words(place, ".jobsRoots");
            bytes32[] memory leaves = new bytes32[](sums.length);
            for (uint256 k = 0; k < sums.length; ++k) {
                leaves[k] = SumTree.settlementLeaf(accounts[k], roots[k], uint96(sums[k]));
            }
            _checkFolds(place, leaves, sums);
        }
    }

    function test_vectors__jobs_trees() public view {
        for (uint256 i = 0; _has(".jobsTrees", i); ++i) {
            string memory place = _at(".jobsTrees", i);
            uint256[] memory sums = _uints(place, ".cumulatives");
            bytes32[] memory jobs = _words(place, ".jobs");
            bytes32[] memory leaves = new bytes32[](sums.length);
            for (uint256 k = 0; k < sums.length; ++k) {
                leaves[k] = SumTree.jobsLeaf(jobs[k], uint96(sums[k]));
            }
            _checkFolds(place, leaves, sums);
        }
    }

    function test_vectors__pay_trees() public view {
        for (uint256 i = 0; _has(".payTrees", i); ++i) {
            string memory place = _at(".payTrees", i);
            _checkPays(place, _addresses(place, ".accounts"), _uints(place, ".earned"), _uints(place, ".vested"));
        }
    }

    function test_vectors__batches() public view {
        for (uint256 i = 0; _has(".batches", i); ++i) {
            string memory place = _at(".batches", i);
            _checkBatch(place, _words(place, ".jobs"), _uints(place, ".steps"), _words(place, ".seals"));
        }
    }

    function test_vectors__lanes() public {
        for (uint256 i = 0; _has(".lanes", i); ++i) {
            string memory place = _at(".lanes", i);
            address caller = address(uint160(0x1A7E + i));
            uint256[] memory blocks = _uints(place, ".blocks");
            (bytes32[] memory roots, bytes32[] memory coins) = (_words(place, ".roots"), _words(place, ".coins"));
            (bytes32[] memory anchored, bytes32[] memory recorded) = (_words(place, ".anchored"), _words(place, ".recorded"));
            for (uint256 k = 0; k < blocks.length; ++k) {
                vm.roll(blocks[k]);
                vm.prank(caller);
                seals.anchor(roots[k]);
                _checkLane(caller, anchored[k]);
                vm.store(HISTORY, bytes32(blocks[k] % 8191), coins[k]);
                if (k + 1 < blocks.length && k % 2 == 0) continue; // the next anchor records it
                vm.roll(coins[k] == 0 ? blocks[k] + 8192 : blocks[k] + 1);
                seals.record(caller);
                _checkLane(caller, recorded[k]);
            }
        }
    }

    function test_vectors__windows() public {
        for (uint256 i = 0; _has(".windows", i); ++i) {
            string memory place = _at(".windows", i);
            demo = demoValues();
            demo[uint256(Parameters.Key.ChallengeWindow)] = uint64(_uint(place, ".challengeWindow"));
            demo[uint256(Parameters.Key.AnnouncementWindow)] = uint64(_uint(place, ".announcementWindow"));
            demo[uint256(Parameters.Key.ExecutionWindow)] = uint64(_uint(place, ".executionWindow"));
            demo[uint256(Parameters.Key.MinEpochLength)] = uint64(_uint(place, ".minEpochLength"));
            vm.warp(1_800_000_000);
            deploy(token);
            _replay(place);
        }
    }

    function test_vectors__parameter_bounds() public view {
        uint256[] memory lowest = _uints(".parameters", ".lowest");
        uint256[] memory highest = _uints(".parameters", ".highest");
        assertEq(lowest.length, parameters.NUM_KEYS(), "keys");
        for (uint256 i = 0; i < lowest.length; ++i) {
            (uint64 min, uint64 max) = parameters.bounds(Parameters.Key(i));
            assertEq(min, lowest[i], "lowest");
            assertEq(max, highest[i], "highest");
        }
    }

    function _replay(string memory place) private {
        string[5] memory names = ["None", "Posted", "Disputed", "Final", "Rejected"];
        string[] memory states = vm.parseJsonStringArray(json, string.concat(place, ".states"));
        bool[] memory fits = vm.parseJsonBoolArray(json, string.concat(place, ".accepted"));
        string[] memory events = vm.parseJsonStringArray(json, string.concat(place, ".events"));
        uint256[] memory epochs = _uints(place, ".epochs");
        uint256[] memory times = _uints(place, ".at");
        uint256[] memory numbers = _uints(place, ".numbers");
        for (uint256 k = 0; k < events.length; ++k) {
            vm.warp(1_800_000_000 + times[k]);
            assertTrue(_apply(events[k], uint48(epochs[k])) == fits[k], string.concat(place, events[k]));
            (EpochWindow.Epoch memory newest, EpochWindow.EpochState state) = settlement.newestEpoch();
            assertEq(newest.number, numbers[k], place);
            assertEq(keccak256(bytes(names[uint256(state)])), keccak256(bytes(states[k])), place);
        }
    }

    function _apply(string memory kind, uint48 epoch) private returns (bool accepted) {
        bytes32 which = keccak256(bytes(kind));
        bytes memory data;
        if (which == keccak256("propose")) {
            Settlement.Statement[] memory none = new Settlement.Statement[](0);
            data = abi.encodeCall(Settlement.propose, (epoch, keccak256(abi.encode(epoch)), 0, none));
            vm.prank(proposer);
        } else if (which == keccak256("announce")) {
            data = abi.encodeWithSelector(EpochWindow.announceRejection.selector, epoch, bytes32(0));
            vm.prank(disputes);
        } else if (which == keccak256("reject")) {
            data = abi.encodeWithSelector(EpochWindow.rejectDebits.selector, epoch, new bytes32[](0));
            vm.prank(disputes);
        } else {
            return false; // time passes, nobody calls
        }
        (accepted,) = address(settlement).call(data);
    }

    function _checkFolds(string memory place, bytes32[] memory leaves, uint256[] memory sums) private view {
        (bytes32 root, uint256 sum) = (_word(place, ".root"), _uint(place, ".sum"));
        uint256[] memory sides = _uints(place, ".sides");
        bytes[] memory paths = _byteses(place, ".paths");
        assertEq(paths.length, leaves.length, "a path for every leaf");
        for (uint256 k = 0; k < leaves.length; ++k) {
            (bytes32 found, uint96 total) = folds.fold(leaves[k], uint96(sums[k]), sides[k], paths[k]);
            assertEq(found, root, "root");
            assertEq(total, sum, "sum");
            (found, total) = folds.foldReference(leaves[k], uint96(sums[k]), sides[k], paths[k]);
            assertEq(found, root, "root by the reference");
            assertEq(total, sum, "sum by the reference");
        }
    }

    function _checkPays(
        string memory place,
        address[] memory accounts,
        uint256[] memory earned,
        uint256[] memory vested
    ) private view {
        bytes32 root = _word(place, ".root");
        uint256[2] memory sums = [_uint(place, ".earnedSum"), _uint(place, ".vestedSum")];
        uint256[] memory sides = _uints(place, ".sides");
        bytes[] memory paths = _byteses(place, ".paths");
        for (uint256 k = 0; k < accounts.length; ++k) {
            bytes32 leaf = SumTree.payLeaf(accounts[k], uint96(earned[k]), uint96(vested[k]));
            (bytes32 found, uint96 e, uint96 v) =
                folds.foldPay(leaf, uint96(earned[k]), uint96(vested[k]), sides[k], paths[k]);
            assertEq(found, root, "pay root");
            assertTrue(e == sums[0] && v == sums[1], "pay sums");
        }
    }

    function _checkBatch(string memory place, bytes32[] memory jobs, uint256[] memory steps, bytes32[] memory sealed_)
        private
        view
    {
        bytes32 root = _word(place, ".root");
        uint256[] memory sides = _uints(place, ".sides");
        bytes[] memory paths = _byteses(place, ".paths");
        for (uint256 k = 0; k < jobs.length; ++k) {
            bytes32 leaf = SumTree.batchLeaf(jobs[k], uint64(steps[k]), sealed_[k]);
            assertEq(folds.foldBatch(leaf, sides[k], paths[k]), root, "batch root");
        }
    }

    function _checkLane(address caller, bytes32 wanted) private view {
        (bytes32 lane,) = seals.lane(caller);
        assertEq(lane, wanted, "lane");
    }

    function _hash(string memory name, bytes memory encoded) private view returns (bytes32, bytes32) {
        bytes32 which = keccak256(bytes(name));
        if (which == keccak256("JobSpec")) return library_.jobSpec(abi.decode(encoded, (Messages.JobSpec)));
        if (which == keccak256("JobOpening")) return library_.jobOpening(abi.decode(encoded, (Messages.JobOpening)));
        if (which == keccak256("Offer")) return library_.offer(abi.decode(encoded, (Messages.Offer)));
        if (which == keccak256("LeaseAccept")) {
            return library_.leaseAccept(abi.decode(encoded, (Messages.LeaseAccept)));
        }
        assertEq(which, keccak256("Seal"), name);
        return library_.seal(abi.decode(encoded, (Messages.Seal)));
    }

    function _at(string memory list, uint256 index) private pure returns (string memory) {
        return string.concat(list, "[", vm.toString(index), "]");
    }

    function _has(string memory list, uint256 index) private view returns (bool) {
        return vm.keyExistsJson(json, _at(list, index));
    }

    function _string(string memory place, string memory key) private view returns (string memory) {
        return vm.parseJsonString(json, string.concat(place, key));
    }

    function _bytes(string memory place, string memory key) private view returns (bytes memory) {
        return vm.parseJsonBytes(json, string.concat(place, key));
    }

    function _word(string memory place, string memory key) private view returns (bytes32) {
        return vm.parseJsonBytes32(json, string.concat(place, key));
    }

    function _uint(string memory place, string memory key) private view returns (uint256) {
        return vm.parseJsonUint(json, string.concat(place, key));
    }

    function _uints(string memory place, string memory key) private view returns (uint256[] memory) {
        return vm.parseJsonUintArray(json, string.concat(place, key));
    }

    function _words(string memory place, string memory key) private view returns (bytes32[] memory) {
        return vm.parseJsonBytes32Array(json, string.concat(place, key));
    }

    function _byteses(string memory place, string memory key) private view returns (bytes[] memory) {
        return vm.parseJsonBytesArray(json, string.concat(place, key));
    }

    function _addresses(string memory place, string memory key) private view returns (address[] memory) {
        return vm.parseJsonAddressArray(json, string.concat(place, key));
    }
}
