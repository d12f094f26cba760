//! All promises once more as an ordinary user, when the tests run as root.

use bottle_test_support::ordinary;

#[test]
fn everything_holds_for_an_ordinary_user_too() {
    ordinary::once_more("ordinary::");
}
