//! Finds all errors of a manifest, and not only the first.
//!
//! Decoding stops at the first error. Therefore, the part of the document that has the error is removed, and the rest
//! is decoded again. The removed part is large enough that its absence causes no further error.

use bottle_text::yaml::{Node, Position, Value};

use super::error::Fault;

/// The maximum number of errors that are reported for one file.
const MAX_ERRORS: usize = 20;

/// Decodes a document. If this fails, returns all errors in the order of the file. There is at least one error.
pub(super) fn decode_all<T>(
    mut root: Node,
    decode: impl Fn(&Node) -> Result<T, Fault>,
) -> Result<T, Vec<Fault>> {
    let mut faults: Vec<Fault> = Vec::new();
    loop {
        let fault = match decode(&root) {
            Ok(value) if faults.is_empty() => return Ok(value),
            Ok(_) => break,
            Err(fault) => fault,
        };
        let is_new = !faults.iter().any(|earlier| earlier.at == fault.at);
        let removed = is_new && remove(&mut root, &fault);
        if is_new {
            faults.push(fault);
        }
        if !removed || faults.len() == MAX_ERRORS {
            break;
        }
    }
    faults.sort_by_key(|fault| (fault.at.line, fault.at.column));
    Err(faults)
}

/// Removes the part with the error: for an unknown key only this key, otherwise the complete unit that contains the
/// position. Returns whether the document contains the position.
fn remove(root: &mut Node, fault: &Fault) -> bool {
    let Some(mut path) = path_to(root, fault.at) else { return false };
    if !fault.is_unknown_key {
        path.truncate(unit(root, &path));
    }
    let Some(last) = path.pop() else { return false };
    let parent = path.into_iter().try_fold(root, |node, index| child(node, index));
    match parent.map(|parent| &mut parent.value) {
        Some(Value::Map(entries)) if last < entries.len() => drop(entries.remove(last)),
        Some(Value::List(items)) if last < items.len() => drop(items.remove(last)),
        _ => return false,
    }
    true
}

/// Returns the path to the innermost value or key at this position, as indexes from the root.
fn path_to(node: &Node, at: Position) -> Option<Vec<usize>> {
    let inner = |index: usize, value: &Node| {
        let mut path = path_to(value, at)?;
        path.insert(0, index);
        Some(path)
    };
    match &node.value {
        Value::Map(entries) => entries.iter().enumerate().find_map(|(index, (key, value))| {
            inner(index, value).or_else(|| (key.at == at || value.at == at).then(|| vec![index]))
        }),
        Value::List(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| inner(index, item).or_else(|| (item.at == at).then(|| vec![index]))),
        _ => None,
    }
}

/// Returns how many indexes of `path` lead to its unit. A unit is a part of the document whose values are checked
/// together.
fn unit(root: &Node, path: &[usize]) -> usize {
    let Value::Map(entries) = &root.value else { return path.len() };
    let key = path.first().and_then(|index| entries.get(*index)).map_or("", |(key, _)| key.text());
    match key {
        "agent_provider" => 1,
        // The unit is one route or one repository.
        "egress" | "git-gate" => path.len().min(3),
        _ => path.len().min(2),
    }
}

fn child(node: &mut Node, index: usize) -> Option<&mut Node> {
    match &mut node.value {
        Value::Map(entries) => entries.get_mut(index).map(|(_, value)| value),
        Value::List(items) => items.get_mut(index),
        _ => None,
    }
}
