// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {Test} from "./Harness.sol";

/// @dev The other tests deploy the shipped artifacts; these must be of the sources that lie here.
contract ArtifactsTest is Test {
    error Stale(string artifact, string source, string remedy);

    function test_artifacts__of_these_sources() public view {
        string[4] memory names = ["JobEscrow", "Parameters", "SealAnchor", "TestToken"];
        for (uint256 i = 0; i < names.length; ++i) {
            string memory artifact = vm.readFile(string.concat("../abi/", names[i], ".json"));
            string[] memory sources = vm.parseJsonKeys(artifact, ".sourceSha256");
            assertTrue(sources.length > 0, "sources");
            for (uint256 k = 0; k < sources.length; ++k) {
                bytes32 found = sha256(bytes(vm.readFile(sources[k])));
                string memory key = string.concat("$.sourceSha256['", sources[k], "']");
                bytes32 wanted = vm.parseJsonBytes32(artifact, key);
                if (found != wanted) revert Stale(names[i], sources[k], "run: node tools/build.mjs");
            }
        }
    }
}
