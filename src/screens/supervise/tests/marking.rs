//! Tests of proposals that are marked and decided together.

use super::*;

#[test]
fn marked_proposals_are_decided_together() {
    let mut state = state(vec![hosts(1), push(2), hosts(3)]);
    assert_eq!(given(&press(&mut state, "x")), "nothing");
    assert_eq!(message(&state), "1 proposal marked: `a` approves, `r` rejects them");
    show(&mut state, USUAL);
    press(&mut state, "j");
    show(&mut state, USUAL);
    press(&mut state, "x");
    show(&mut state, USUAL);
    assert_eq!(given(&press(&mut state, "a")), "yes to 01: -, yes to 03: -");
    assert!(!state.is_marked(&id(1)) && !state.is_marked(&id(3)));
}

#[test]
fn one_reason_decides_all_marked_proposals_that_need_one() {
    let mut state = state(vec![hosts(1), push(2), push(3)]);
    // The text of a push must be shown in full before the push can be marked.
    for _ in 0..5 {
        press(&mut state, "x");
        show(&mut state, USUAL);
    }
    assert_eq!(message(&state), "3 proposals marked: `a` approves, `r` rejects them");
    press(&mut state, "a");
    let effect = press(&mut state, "fixtures\n");
    assert_eq!(given(&effect), "yes to 01: -, yes to 02: fixtures, yes to 03: fixtures");

    let mut state = super::state(vec![push(2), push(3)]);
    for _ in 0..4 {
        press(&mut state, "x");
        show(&mut state, USUAL);
    }
    press(&mut state, "r");
    assert_eq!(given(&press(&mut state, "no\n")), "no to 02: no, no to 03: no");
}

#[test]
fn marks_are_removed_by_the_same_key_and_by_other_answers() {
    let mut state = state(vec![hosts(1), hosts(3)]);
    press(&mut state, "x");
    show(&mut state, USUAL);
    press(&mut state, "k");
    show(&mut state, USUAL);
    press(&mut state, "x");
    assert_eq!(message(&state), "nothing is marked");
    show(&mut state, USUAL);
    press(&mut state, "x");
    state.poll_succeeded(listing(vec![hosts(3)]), now());
    assert!(!state.is_marked(&id(1)));
}

/// As for an approval, a proposal is marked only when all of it is on the screen.
#[test]
fn a_proposal_is_shown_in_full_before_it_is_marked() {
    let many: String = (0..20).map(|n| format!("- host: h{n}.example\n")).collect();
    let mut state = state(vec![pending(1, "one", Tool::EgressAllow, &many, "many"), hosts(3)]);
    press(&mut state, "x");
    assert!(!state.is_marked(&id(1)));
    assert_eq!(message(&state), "read all of it, and press `x` again to mark it");
    press(&mut state, "x");
    assert!(!state.is_marked(&id(1)), "its end was not shown");
    page_to_end(&mut state);
    press(&mut state, "x");
    assert!(state.is_marked(&id(1)));
}
