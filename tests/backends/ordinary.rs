//! Runs all tests again as an ordinary user, when the tests run as root.

use bottle_test_support::ordinary;

#[test]
fn all_promises_hold_for_an_ordinary_user() {
    ordinary::once_more("ordinary::");
}
