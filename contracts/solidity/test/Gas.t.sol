// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {JobEscrow} from "../src/JobEscrow.sol";
import {Deployed} from "./Deployed.sol";

/// @dev Gas of whole transactions (isolated: intrinsic gas, calldata and cold storage included) against
/// the limits of the README. Each measurement is an event that the Python table reads.
contract GasTest is Deployed {
    // forge decodes this one in its JSON report; the key carries the limit.
    event log_named_uint(string key, uint256 val);

    uint256 internal constant KEYS = 0xABCDEF;

    function test_gas__deployment() public {
        _report("deploy", deployGas, 6_000_000);
    }

    function test_gas__open__by_the_poster() public {
        openJob(100e6, 100e6, 1);
        openJob(100e6, 100e6, 1);
        _within("open by the poster", 1, 73_000);
    }

    function test_gas__anchor__with_the_beacon_before() public {
        seals.anchor(keccak256("first"));
        vm.roll(1001);
        vm.store(HISTORY, bytes32(uint256(1000 % 8191)), keccak256("block"));
        seals.anchor(keccak256("second"));
        _within("anchor", 1, 45_000);
    }

    function test_gas__bond__alone_and_in_a_batch() public {
        (, bytes32 job) = openJob(100e6, 100e6, 1);
        fund(worker, 100e6);
        bond(job, WORKER, 5e6);
        _within("bond, first", 1, 63_000);
        bond(job, WORKER, 6e6);
        _within("bond, raise", 1, 46_000);
        JobEscrow.SignedBond[] memory bonds = new JobEscrow.SignedBond[](10);
        for (uint256 i = 0; i < 10; ++i) {
            address account = vm.addr(KEYS + i);
            fund(account, 100e6);
            bonds[i] = JobEscrow.SignedBond(account, 5e6, soon(), sign(bondHash(job, account, 5e6, soon()), KEYS + i));
        }
        escrow.bondMany(job, bonds);
        _within("bond, first, in a list of 10", 10, 41_000);
    }

    function test_gas__grant__lists() public {
        uint256[3] memory counts = [uint256(1), 100, 256];
        for (uint256 i = 0; i < 3; ++i) {
            (JobEscrow.JobHeader memory header,) = openJob(1e10, 1e10, 1);
            uint256 count = counts[i];
            string memory suffix = string.concat(" an account in a list of ", vm.toString(count));
            grant(header, _limits(count, 5_123_457));
            _within(string.concat("grant, first,", suffix), count, count == 1 ? 100_000 : 26_500);
            later(3600);
            grant(header, _limits(count, 9_123_457));
            _within(string.concat("grant, raise,", suffix), count, count == 1 ? 58_000 : 9_400);
        }
    }

    function test_gas__claim__of_1000_accounts() public {
        (JobEscrow.JobHeader memory header,) = openJob(1e10, 1e10, 1);
        _granted(header, 1000);
        claim(header, _leaves(1000, 1_234_567), 500, COORDINATOR);
        _within("claim, first, 1000 accounts", 1, 73_000);
        claim(header, _leaves(1000, 2_345_678), 500, COORDINATOR);
        _within("claim, later, 1000 accounts", 1, 55_000);
    }

    function test_gas__claim_all__of_256() public {
        (JobEscrow.JobHeader memory header,) = openJob(1e10, 1e10, 1);
        _granted(header, 1000);
        _claimAll(header, _leaves(1000, 1_234_567));
        _within("claimAll, first, an account of 256", 256, 34_500);
        _claimAll(header, _leaves(1000, 2_345_678));
        _within("claimAll, later, an account of 256", 256, 17_500);
        _claimAll(header, _leaves(1000, 2_345_678));
        _within("claimAll, nothing due, an account of 256", 256, 6_000);
    }

    function test_gas__claims__of_10_jobs() public {
        bytes[] memory calls = new bytes[](10);
        for (uint80 round = 1; round <= 2; ++round) {
            nonce = 0;
            for (uint256 i = 0; i < 10; ++i) {
                if (round == 1) {
                    (JobEscrow.JobHeader memory opened,) = openJob(1e10, 1e10, 1);
                    _granted(opened, 1000);
                }
            }
            nonce = 0;
            for (uint256 i = 0; i < 10; ++i) {
                calls[i] = _claimCall(newHeader(1e10, 1e10, 1), _leaves(1000, round * 1_234_567), 500);
            }
            escrow.multicall(calls);
        }
        _within("claim, later, of 10 jobs in one call", 1, 330_000);
    }

    function test_gas__release__of_100() public {
        (JobEscrow.JobHeader memory header, bytes32 job) = openJob(1e10, 1e10, 1);
        address[] memory accounts = new address[](100);
        _granted(header, 100);
        for (uint256 i = 0; i < 100; ++i) {
            accounts[i] = vm.addr(KEYS + i);
            fund(accounts[i], 10e6);
            bond(job, KEYS + i, 5e6);
        }
        _claimAll(header, _leaves(100, 1_234_567));
        close(header);
        later(TAIL);
        escrow.release(job, accounts);
        _within("release, an account of 100", 100, 18_500);
    }

    /// @dev 1,000 accounts, 10 days: a bond each, a grant and a claim a day, close and release.
    function test_gas__life_of_a_job() public {
        (JobEscrow.JobHeader memory header, bytes32 job) = openJob(1e11, 1e11, 1);
        uint256 total = vm.lastCallGas().gasTotalUsed;
        address[] memory accounts = new address[](250);
        for (uint256 i = 0; i < 250; ++i) {
            accounts[i] = vm.addr(KEYS + i);
            fund(accounts[i], 10e6);
        }
        total += _bonds(job);
        uint256 daily;
        for (uint80 day = 1; day <= 10; ++day) {
            uint256 spent;
            grant(header, _limits(250, uint96(day) * 6_123_457));
            spent += vm.lastCallGas().gasTotalUsed;
            _claimAll(header, _leaves(250, day * 5_234_567));
            spent += vm.lastCallGas().gasTotalUsed;
            if (day == 1) total += 4 * spent; // a quarter of the accounts stands for all
            daily += day == 1 ? 0 : 4 * spent;
            later(1 days);
        }
        close(header);
        total += vm.lastCallGas().gasTotalUsed;
        later(TAIL);
        escrow.release(job, accounts);
        total += 4 * vm.lastCallGas().gasTotalUsed;
        _report("life, one grant and one claim, a contribution", total / 1e6, 120);
        _report("life, daily grants and claims, a contribution", (total + daily) / 1e6, 340);
    }

    function _bonds(bytes32 job) private returns (uint256 spent) {
        for (uint256 i = 0; i < 250; i += 10) {
            JobEscrow.SignedBond[] memory bonds = new JobEscrow.SignedBond[](10);
            for (uint256 k = 0; k < 10; ++k) {
                uint256 key = KEYS + i + k;
                bytes memory signature = sign(bondHash(job, vm.addr(key), 5e6, soon()), key);
                bonds[k] = JobEscrow.SignedBond(vm.addr(key), 5e6, soon(), signature);
            }
            escrow.bondMany(job, bonds);
            spent += 4 * vm.lastCallGas().gasTotalUsed;
        }
    }

    function _limits(uint256 count, uint96 amount) private pure returns (uint256[] memory limits) {
        limits = new uint256[](count);
        for (uint256 i = 0; i < count; ++i) {
            limits[i] = (uint256(uint160(vm.addr(KEYS + i))) << 96) | (amount + i);
        }
    }

    function _granted(JobEscrow.JobHeader memory header, uint256 count) private {
        uint256[] memory all = _limits(count, 9_123_457);
        for (uint256 from = 0; from < count; from += 250) {
            uint256 size = count - from < 250 ? count - from : 250;
            uint256[] memory some = new uint256[](size);
            for (uint256 i = 0; i < size; ++i) {
                some[i] = all[from + i];
            }
            grant(header, some);
        }
    }

    /// @dev In the order of the keys, not of the accounts: the chain does not read the order.
    function _leaves(uint256 count, uint80 vested) private pure returns (Leaf[] memory leaves) {
        leaves = new Leaf[](count);
        for (uint80 i = 0; i < count; ++i) {
            leaves[i] = Leaf(vm.addr(KEYS + i), vested + 123_456 + i, vested + i);
        }
    }

    function _claimCall(JobEscrow.JobHeader memory header, Leaf[] memory leaves, uint256 index)
        private
        view
        returns (bytes memory)
    {
        (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), index, 0);
        bytes memory signature = sign(sealHash(idOf(header), root), COORDINATOR);
        Leaf memory it = leaves[index];
        return abi.encodeCall(
            escrow.claim, (header, DETAILS, signature, it.account, it.earned, it.vested, sides, path)
        );
    }

    function _claimAll(JobEscrow.JobHeader memory header, Leaf[] memory leaves) private {
        uint256 size = leaves.length < 256 ? leaves.length : 256;
        (bytes32 root, uint256 sides, bytes32[] memory path) = pathOf(nodesOf(leaves), 0, 8);
        bytes memory signature = sign(sealHash(idOf(header), root), COORDINATOR);
        escrow.claimAll(header, DETAILS, signature, packed(leaves, 0, size), sides, path);
    }

    function _within(string memory what, uint256 count, uint256 limit_) private {
        _report(what, vm.lastCallGas().gasTotalUsed / count, limit_);
    }

    function _report(string memory what, uint256 used, uint256 limit_) private {
        emit log_named_uint(string.concat(what, " | ", vm.toString(limit_)), used);
        assertLe(used, limit_, what);
    }
}
