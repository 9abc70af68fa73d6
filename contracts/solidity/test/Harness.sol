// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @dev What the tests use of forge's cheat codes; forge-std is not on npm in a current version.
interface Vm {
    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function warp(uint256 timestamp) external;
    function roll(uint256 blockNumber) external;
    function chainId(uint256 id) external;
    function getBlockTimestamp() external view returns (uint256);
    function prank(address caller) external;
    function startPrank(address caller) external;
    function stopPrank() external;
    function etch(address target, bytes calldata code) external;
    function store(address target, bytes32 slot, bytes32 value) external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function addr(uint256 key) external pure returns (address);
    function expectRevert() external;
    function expectRevert(bytes4 selector) external;
    function expectRevert(bytes calldata reason) external;
    function expectPartialRevert(bytes4 selector) external;
    function expectEmit() external;
    function lastCallGas() external view returns (Gas memory);
    function envOr(string calldata name, string calldata fallback_) external view returns (string memory);
    function readFile(string calldata path) external view returns (string memory);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonUintArray(string calldata json, string calldata key) external pure returns (uint256[] memory);
    function parseJsonAddress(string calldata json, string calldata key) external pure returns (address);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonBytes32Array(string calldata json, string calldata key)
        external
        pure
        returns (bytes32[] memory);
    function parseJsonBytes(string calldata json, string calldata key) external pure returns (bytes memory);
    function parseJsonBytesArray(string calldata json, string calldata key) external pure returns (bytes[] memory);
    function parseJsonAddressArray(string calldata json, string calldata key)
        external
        pure
        returns (address[] memory);
    function parseJsonString(string calldata json, string calldata key) external pure returns (string memory);
    function keyExistsJson(string calldata json, string calldata key) external view returns (bool);
    function parseJsonKeys(string calldata json, string calldata key) external pure returns (string[] memory);
    function toString(uint256 value) external pure returns (string memory);
}

/// @dev Assertions, and the hooks that forge looks for.
abstract contract Test {
    // forge finds tests by name; IS_TEST lets it treat the contract as one.
    bool public constant IS_TEST = true;
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    /// @dev Gas of all deployments by `create`.
    uint256 internal deployGas;

    error Unequal(string what, uint256 found, uint256 wanted);
    error UnequalBytes32(string what, bytes32 found, bytes32 wanted);
    error Untrue(string what);
    error AboveLimit(string what, uint256 found, uint256 limit);

    function assertTrue(bool condition, string memory what) internal pure {
        if (!condition) revert Untrue(what);
    }

    function assertEq(uint256 found, uint256 wanted, string memory what) internal pure {
        if (found != wanted) revert Unequal(what, found, wanted);
    }

    function assertEq(bytes32 found, bytes32 wanted, string memory what) internal pure {
        if (found != wanted) revert UnequalBytes32(what, found, wanted);
    }

    function assertEq(address found, address wanted, string memory what) internal pure {
        if (found != wanted) revert UnequalBytes32(what, bytes32(bytes20(found)), bytes32(bytes20(wanted)));
    }

    function assertLe(uint256 found, uint256 limit, string memory what) internal pure {
        if (found > limit) revert AboveLimit(what, found, limit);
    }

    /// @dev Deploys the shipped artifact: what is tested is what is deployed, byte for byte.
    function create(string memory name, bytes memory args) internal returns (address place) {
        string memory folder = vm.envOr("TALLYSTICK_ARTIFACTS", string("../abi")); // another: mutants
        string memory artifact = vm.readFile(string.concat(folder, "/", name, ".json"));
        bytes memory code = abi.encodePacked(vm.parseJsonBytes(artifact, ".bytecode"), args);
        uint256 before = gasleft();
        assembly ("memory-safe") {
            place := create(0, add(code, 0x20), mload(code))
            if iszero(place) {
                let reason := mload(0x40)
                returndatacopy(reason, 0, returndatasize())
                revert(reason, returndatasize())
            }
        }
        deployGas += before - gasleft();
    }

    function bound(uint256 value, uint256 min, uint256 max) internal pure returns (uint256) {
        return min + value % (max - min + 1);
    }
}
