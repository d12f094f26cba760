//! Runs all tests again as an ordinary user, when the tests run as root.

use bottle_test_support::ordinary;

#[test]
fn every_attack_fails_for_an_ordinary_user() {
    ordinary::once_more("ordinary::");
}
