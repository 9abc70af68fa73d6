// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {Messages} from "../src/Messages.sol";
import {Settlement} from "../src/Settlement.sol";
import {TestToken} from "../src/TestToken.sol";
import {TokenHolder} from "../src/TokenHolder.sol";
import {Deployed} from "./Deployed.sol";
import {Trees} from "./Trees.sol";

/// @dev Gas of whole transactions (isolated: intrinsic gas and cold storage included) against the
/// limits of the README. Each measurement is an event that the Python table reads.
contract GasTest is Deployed {
    // forge decodes this one in its JSON report; the key carries the limit.
    event log_named_uint(string key, uint256 val);

    function test_gas__deployment__whole_set() public {
        uint256 used = deployGas;
        _report("deployment, all seven contracts", used, 12_000_000);
    }

    function test_gas__open__second_and_later() public {
        openJob(100e6);
        Messages.JobHeader memory header = newHeader();
        vm.prank(poster);
        escrow.open(header, 100e6);
        _within("open", 70_000);
    }

    function test_gas__open_with_permit__newcomer() public {
        openJob(1e6);
        uint256 key = 0xBEEF;
        vm.prank(minter);
        TestToken(address(token)).faucet(vm.addr(key), 200e6);
        Messages.JobSpec memory spec = Messages.JobSpec(
            vm.addr(key), coordinator, keccak256("details"), 100e6, CAP, uint64(block.timestamp + 1 days), 99
        );
        bytes memory signature = sign(hashes.jobSpec(spec), key);
        TokenHolder.Permit memory permit = permitOf(key, 100e6);
        escrow.openWithPermit(spec, signature, permit);
        _within("open with permit, relayed", 125_000);
    }

    function test_gas__commit__no_job() public {
        _settledEpochs(1, 2);
        (bytes32 root,) = (keccak256("root"), 0);
        Settlement.Statement[] memory none = new Settlement.Statement[](0);
        (uint96 funded,) = settlement.totals();
        later(10);
        vm.prank(proposer);
        settlement.propose(3, root, funded + 1e6, none);
        _within("commit, no job", 52_000);
    }

    function test_gas__commit__jobs_debited_before() public {
        for (uint256 i = 0; i < 2; ++i) {
            uint256 count = i == 0 ? 1 : 10;
            setUp();
            Messages.JobHeader[] memory headers = _settledEpochs(count, 2);
            _propose(3, headers, 3e6);
            _within(count == 1 ? "commit, 1 job debited before" : "commit, 10 jobs debited before", 52_000 + 20_000 * count);
        }
    }

    function test_gas__commit__new_jobs() public {
        for (uint256 i = 0; i < 2; ++i) {
            uint256 count = i == 0 ? 1 : 10;
            setUp();
            _settledEpochs(1, 2);
            Messages.JobHeader[] memory fresh = new Messages.JobHeader[](count);
            for (uint256 k = 0; k < count; ++k) {
                (fresh[k],) = openJob(100e6);
            }
            _propose(3, fresh, 1e6);
            _within(count == 1 ? "commit, 1 new job" : "commit, 10 new jobs", 52_000 + 37_000 * count);
        }
    }

    function test_gas__claim__10_100_1000_accounts() public {
        uint256[3] memory counts = [uint256(10), 100, 1000];
        string[3] memory names =
            ["claim, 10 accounts", "claim, 100 accounts", "claim, 1000 accounts"];
        for (uint256 i = 0; i < 3; ++i) {
            setUp();
            _claimed(counts[i]);
            _within(names[i], 66_000);
        }
    }

    function test_gas__claim__that_fetches_money_from_escrow() public {
        (Messages.JobHeader memory header,) = openJob(100e6);
        Trees.Payout[] memory payouts = post(1, header, 10e6, provider, 10e6);
        later(10);
        settlement.finalize();
        claim(payouts, 0);
        payouts = post(2, header, 20e6, provider, 20e6);
        later(10);
        post(3, header, 30e6, provider, 30e6); // books epoch 2 and moves nothing
        claim(payouts, 0);
        _within("claim, 1 account, money still in escrow", 100_000);
    }

    function test_gas__anchor__steady_state() public {
        vm.store(HISTORY, bytes32(uint256(1000 % 8191)), keccak256("1000"));
        vm.store(HISTORY, bytes32(uint256(1010 % 8191)), keccak256("1010"));
        seals.anchor(keccak256("0"));
        vm.roll(1010);
        seals.anchor(keccak256("1"));
        vm.roll(1020);
        seals.anchor(keccak256("2"));
        _within("anchor", 45_000);
    }

    function _within(string memory what, uint256 limit) private {
        _report(what, vm.lastCallGas().gasTotalUsed, limit);
    }

    function _report(string memory what, uint256 used, uint256 limit) private {
        emit log_named_uint(string.concat(what, " | ", vm.toString(limit)), used);
        assertLe(used, limit, what);
    }

    function _settledEpochs(uint256 numJobs, uint48 numEpochs) private returns (Messages.JobHeader[] memory headers) {
        headers = new Messages.JobHeader[](numJobs);
        for (uint256 i = 0; i < numJobs; ++i) {
            (headers[i],) = openJob(100e6);
        }
        for (uint48 epoch = 1; epoch <= numEpochs; ++epoch) {
            _propose(epoch, headers, uint96(epoch) * 1e6);
        }
        later(10);
    }

    function _propose(uint48 epoch, Messages.JobHeader[] memory headers, uint96 vested) private {
        later(10);
        Settlement.Statement[] memory statements = new Settlement.Statement[](headers.length);
        uint96 added;
        for (uint256 i = 0; i < headers.length; ++i) {
            statements[i] = statement(headers[i], epoch, vested);
            (, uint96 debited) = escrow.fundsOf(idOf(headers[i]));
            added += vested - debited;
        }
        (, uint96 sum,) = _newest();
        vm.prank(proposer);
        settlement.propose(epoch, keccak256(abi.encode(epoch)), sum + added, statements);
    }

    function _newest() private view returns (uint48, uint96, Settlement.EpochState) {
        (Settlement.Epoch memory newest, Settlement.EpochState state) = settlement.newestEpoch();
        return (newest.number, newest.rootSum, state);
    }

    /// @dev Second claim of an account that holds tokens, in the steady state of a busy deployment.
    function _claimed(uint256 count) private {
        (Messages.JobHeader memory header,) = openJob(100_000e6);
        Trees.Payout[] memory payouts = new Trees.Payout[](count);
        uint256 middle = count / 2;
        for (uint256 round = 1; round <= 2; ++round) {
            for (uint256 i = 0; i < count; ++i) {
                address account = address(uint160(uint256(keccak256("account"))) + uint160(i));
                payouts[i] = Trees.Payout(account, keccak256(abi.encode(i)), uint96((round * 40e6 - 7) / count + i));
            }
            (bytes32 root, uint96 sum) = Trees.settlementRoot(payouts);
            Settlement.Statement[] memory statements = one(statement(header, uint64(round), sum));
            vm.prank(proposer);
            settlement.propose(uint48(round), root, sum, statements);
            later(10);
            settlement.finalize();
            claim(payouts, middle);
            later(10);
        }
    }
}
