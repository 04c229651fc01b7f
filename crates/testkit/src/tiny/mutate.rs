//! Model files with random damage, for tests that a loader refuses or survives anything.
//!
//! A file is taken apart into its entries, changed in one to three places, and put together again, so that
//! most damage meets the metadata and the table of tensors and what is not damaged stays consistent:
//! lengths that lie, types that change, names that repeat, sizes and offsets that don't fit.

use super::parts::{Entry, Field, Parts};
use crate::rng::Rng;

/// A damaged file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The file.
    pub bytes: Vec<u8>,
    /// What was done, in order.
    pub changes: Vec<String>,
}

/// A damaged copy of a GGUF file; the same seed gives the same bytes.
pub fn mutate(bytes: &[u8], seed: u64) -> Vec<u8> {
    mutation(bytes, seed).bytes
}

/// A damaged copy of a GGUF file and what was done to it. Bytes that are no GGUF file are damaged at random.
pub fn mutation(bytes: &[u8], seed: u64) -> Mutation {
    let rng = &mut Rng::labelled(seed, "mutation");
    let mut changes = Vec::new();
    let Some(mut parts) = Parts::parse(bytes) else {
        let mut bytes = bytes.to_vec();
        changes.push(flip(&mut bytes, 0, usize::MAX, rng));
        return Mutation { bytes, changes };
    };
    let count = 1 + rng.below(8) / 5 + rng.below(8) / 7;
    let chosen: Vec<Change> = (0..count).map(|_| weighted(&CHANGES, rng)).collect();
    for change in &chosen {
        if let Change::Structure(edit) = change {
            changes.extend(edit(&mut parts, rng));
        }
    }
    let (mut out, fields, data_at) = parts.to_bytes();
    for change in &chosen {
        if let Change::Bytes(edit) = change {
            changes.push(edit(&mut out, &fields, data_at, rng));
        }
    }
    if changes.is_empty() {
        // The structure had nothing of the chosen kind to change.
        changes.push(flip(&mut out, 0, data_at, rng));
    }
    Mutation { bytes: out, changes }
}

/// A change of the parts; `None` if there is nothing to change.
type StructureEdit = fn(&mut Parts, &mut Rng) -> Option<String>;

/// A change of the file: its bytes, the fields of its tables, and where its data begins.
type BytesEdit = fn(&mut Vec<u8>, &[Field], usize, &mut Rng) -> String;

#[derive(Clone, Copy)]
enum Change {
    Structure(StructureEdit),
    Bytes(BytesEdit),
}

/// Changes with their weights.
const CHANGES: [(usize, Change); 20] = [
    (10, Change::Structure(remove_key)),
    (10, Change::Structure(retype_key)),
    (14, Change::Structure(change_number)),
    (4, Change::Structure(duplicate_key)),
    (3, Change::Structure(rename_key)),
    (5, Change::Structure(shorten_array)),
    (3, Change::Structure(spoil_text)),
    (3, Change::Structure(add_alignment)),
    (5, Change::Structure(remove_tensor)),
    (4, Change::Structure(duplicate_tensor)),
    (4, Change::Structure(rename_tensor)),
    (8, Change::Structure(change_dims)),
    (8, Change::Structure(change_tensor_type)),
    (8, Change::Structure(move_tensor)),
    (2, Change::Structure(swap_tensors)),
    (14, Change::Bytes(|out, fields, _, rng| lie(out, fields, rng))),
    (10, Change::Bytes(|out, _, data_at, rng| flip(out, 0, data_at, rng))),
    (8, Change::Bytes(cut)),
    (3, Change::Bytes(|out, _, data_at, rng| flip(out, data_at, usize::MAX, rng))),
    (1, Change::Bytes(append)),
];

fn weighted<T: Copy>(list: &[(usize, T)], rng: &mut Rng) -> T {
    let mut left = rng.below(list.iter().map(|(weight, _)| weight).sum());
    let found = list.iter().find(|(weight, _)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    found.unwrap_or(&list[0]).1
}

fn pick<'a, T>(list: &'a mut [T], rng: &mut Rng) -> Option<&'a mut T> {
    let at = rng.below(list.len());
    list.get_mut(at)
}

/// A number that a size, a count or an offset should not be.
fn odd_number(old: u64, rng: &mut Rng) -> u64 {
    let list = [
        0,
        1,
        3,
        old.wrapping_add(1),
        old.wrapping_sub(1),
        old.wrapping_mul(2),
        old / 2,
        old.wrapping_add(1 << 32),
        (1 << 16) - 1,
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        1 << 40,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 31,
        u64::MAX,
        rng.next_u64(),
        rng.next_u64() >> 32,
    ];
    list[rng.below(list.len())]
}

fn remove_key(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let at = rng.below(parts.entries.len());
    (at < parts.entries.len()).then(|| format!("without key {}", parts.entries.remove(at).name()))
}

/// Gives a key a value of another type.
fn retype_key(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let entry = pick(&mut parts.entries, rng)?;
    let values: [(u32, &[u8]); 18] = [
        (0, &[255]),
        (1, &[255]),
        (2, &[255, 255]),
        (3, &[0, 128]),
        (4, &[7, 0, 0, 0]),
        (5, &[249, 255, 255, 255]),
        (6, &[0, 0, 192, 127]),
        (7, &[1]),
        (7, &[2]),
        (8, &[1, 0, 0, 0, 0, 0, 0, 0, b'x']),
        (9, &[4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]),
        (9, &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (9, &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (10, &[255; 8]),
        (11, &[255; 8]),
        (12, &[0, 0, 0, 0, 0, 0, 240, 127]),
        (13, &[0; 4]),
        (u32::MAX, &[0; 8]),
    ];
    let (ty, value) = values[rng.below(values.len())];
    let text = format!("{} has type {ty} for {}", entry.name(), entry.ty);
    *entry = Entry { key: entry.key.clone(), ty, value: value.to_vec() };
    Some(text)
}

/// Gives a number, alone or in a list, another value.
fn change_number(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let mut numbers: Vec<&mut Entry> =
        parts.entries.iter_mut().filter(|e| e.number_width().is_some()).collect();
    let entry = pick(&mut numbers, rng)?;
    let (width, name) = (entry.number_width()?, entry.name());
    let float = entry.ty == 6;
    let slots = entry.numbers_mut();
    let at = rng.below(slots.len() / width);
    let slot = slots.get_mut(at * width..(at + 1) * width)?;
    let mut old = [0; 8];
    old[..width].copy_from_slice(slot);
    let floats = [f32::NAN, f32::INFINITY, 0.0, -1.0, 1e30, 1e-40, -0.0, 3.5];
    let new = match float {
        true => u64::from(floats[rng.below(floats.len())].to_bits()),
        false => odd_number(u64::from_le_bytes(old), rng),
    };
    slot.copy_from_slice(&new.to_le_bytes()[..width]);
    Some(format!("{name}[{at}] has the bits {new:#x}"))
}

/// Repeats a key, with the same value or another key's.
fn duplicate_key(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let mut copy = pick(&mut parts.entries, rng)?.clone();
    if rng.below(2) == 0 {
        let other = pick(&mut parts.entries, rng)?;
        (copy.ty, copy.value) = (other.ty, other.value.clone());
    }
    let text = format!("{} twice", copy.name());
    let at = rng.below(parts.entries.len() + 1);
    parts.entries.insert(at, copy);
    Some(text)
}

/// Gives a key another key's name, none, or a long one.
fn rename_key(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let other = pick(&mut parts.entries, rng)?.key.clone();
    let entry = pick(&mut parts.entries, rng)?;
    let old = entry.name();
    entry.key = match rng.below(3) {
        0 => other,
        1 => Vec::new(),
        _ => vec![b'k'; 70_000],
    };
    Some(format!("another name for {old}"))
}

/// Ends a list early, consistently.
fn shorten_array(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let mut arrays: Vec<&mut Entry> = parts.entries.iter_mut().filter(|e| e.array_len().is_some()).collect();
    let entry = pick(&mut arrays, rng)?;
    let len = entry.array_len()?;
    let keep = [0, 1, len / 2, len.saturating_sub(1)][rng.below(4)].min(len);
    entry.shorten_array(keep)?;
    Some(format!("{} has {keep} of {len} elements", entry.name()))
}

/// Puts bytes that are no UTF-8 into a text.
fn spoil_text(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let mut texts: Vec<&mut Entry> = parts.entries.iter_mut().filter(|e| e.ty == 8).collect();
    let entry = pick(&mut texts, rng)?;
    let at = 8 + rng.below(entry.value.len().saturating_sub(8));
    *entry.value.get_mut(at)? = [0xff, 0xc0, 0x80, 0][rng.below(4)];
    Some(format!("a bad byte in {}", entry.name()))
}

fn add_alignment(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let alignment = [0u32, 1, 3, 8, 33, 64, 4096, 1 << 20, 1 << 31, u32::MAX][rng.below(10)];
    let value = alignment.to_le_bytes().to_vec();
    let at = rng.below(parts.entries.len() + 1);
    parts.entries.insert(at, Entry { key: b"general.alignment".to_vec(), ty: 4, value });
    Some(format!("an alignment of {alignment}"))
}

fn remove_tensor(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let at = rng.below(parts.tensors.len());
    (at < parts.tensors.len()).then(|| format!("without tensor {}", parts.tensors.remove(at).label()))
}

fn duplicate_tensor(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let copy = pick(&mut parts.tensors, rng)?.clone();
    let text = format!("{} twice", copy.label());
    let at = rng.below(parts.tensors.len() + 1);
    parts.tensors.insert(at, copy);
    Some(text)
}

/// Gives a tensor another tensor's name, none, or a block number out of reach.
fn rename_tensor(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let other = pick(&mut parts.tensors, rng)?.name.clone();
    let tensor = pick(&mut parts.tensors, rng)?;
    let old = tensor.label();
    tensor.name = match rng.below(4) {
        0 => other,
        1 => Vec::new(),
        2 => b"blk.4294967296.attn_q.weight".to_vec(),
        _ => vec![0xff; 64],
    };
    Some(format!("another name for {old}"))
}

fn change_dims(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let tensor = pick(&mut parts.tensors, rng)?;
    match rng.below(6) {
        0 => tensor.dims.reverse(),
        1 => tensor.dims.push(odd_number(1, rng)),
        2 => drop(tensor.dims.pop()),
        3 => tensor.dims = vec![2; 5 + rng.below(60)],
        _ => {
            let dim = pick(&mut tensor.dims, rng)?;
            *dim = odd_number(*dim, rng);
        }
    }
    Some(format!("{} has the sizes {:?}", tensor.label(), tensor.dims))
}

fn change_tensor_type(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let tensor = pick(&mut parts.tensors, rng)?;
    tensor.ty = if rng.below(8) == 0 { rng.next_u64() as u32 } else { rng.below(42) as u32 };
    Some(format!("{} has type {}", tensor.label(), tensor.ty))
}

/// Moves a tensor's data to another tensor's, off alignment, or out of the file.
fn move_tensor(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let other = pick(&mut parts.tensors, rng)?.offset;
    let end = parts.data.len() as u64;
    let tensor = pick(&mut parts.tensors, rng)?;
    let old = tensor.offset;
    tensor.offset = match rng.below(5) {
        0 => other,
        1 => old.wrapping_add(1 + rng.below(31) as u64),
        2 => end.saturating_sub(32 * rng.below(4) as u64),
        _ => odd_number(old, rng),
    };
    Some(format!("data of {} at {} for {old}", tensor.label(), tensor.offset))
}

fn swap_tensors(parts: &mut Parts, rng: &mut Rng) -> Option<String> {
    let (a, b) = (rng.below(parts.tensors.len()), rng.below(parts.tensors.len()));
    if a.max(b) >= parts.tensors.len() {
        return None;
    }
    let name = std::mem::take(&mut parts.tensors[a].name);
    let other = std::mem::replace(&mut parts.tensors[b].name, name);
    // With a = b the name comes straight back.
    if a != b {
        parts.tensors[a].name = other;
    }
    Some(format!("{} and {} change places", parts.tensors[a].label(), parts.tensors[b].label()))
}

/// Makes a count, a length or a type of the tables a lie.
fn lie(out: &mut [u8], fields: &[Field], rng: &mut Rng) -> String {
    let Some(field) = fields.get(rng.below(fields.len())) else { return "nothing".into() };
    // A cut before may have taken it away.
    let Some(slot) = out.get_mut(field.at..field.at + field.width) else { return "nothing".into() };
    let mut old = [0; 8];
    old[..field.width].copy_from_slice(slot);
    let new = odd_number(u64::from_le_bytes(old), rng);
    slot.copy_from_slice(&new.to_le_bytes()[..field.width]);
    format!("{} at {} is {new}", field.what, field.at)
}

/// Changes bytes in a range, a few bits or all of them.
fn flip(out: &mut [u8], start: usize, end: usize, rng: &mut Rng) -> String {
    let end = end.min(out.len());
    let mut places = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let at = start + rng.below(end.saturating_sub(start));
        if let Some(byte) = out.get_mut(at) {
            *byte ^= if rng.below(2) == 0 { 1 << rng.below(8) } else { 1 + rng.below(255) as u8 };
            places.push(at);
        }
    }
    format!("bytes changed at {places:?}")
}

/// Cuts the file off: in its tables, at the end of one of their fields, or in the data.
fn cut(out: &mut Vec<u8>, fields: &[Field], data_at: usize, rng: &mut Rng) -> String {
    let field = fields.get(rng.below(fields.len())).map_or(0, |f| f.at + f.width);
    let places = [rng.below(data_at), field, data_at + rng.below(out.len().saturating_sub(data_at))];
    out.truncate(places[rng.below(places.len())]);
    format!("cut after {} bytes", out.len())
}

fn append(out: &mut Vec<u8>, _: &[Field], _: usize, rng: &mut Rng) -> String {
    let n = 1 + rng.below(100);
    out.extend((0..n).map(|_| rng.next_u64() as u8));
    format!("{n} bytes more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::{Shape, TinySpec};
    use minfer_gguf::Gguf;
    use std::collections::HashSet;

    #[test]
    fn mutations_are_new_varied_and_the_same_each_time() {
        let spec = TinySpec::llama().with_vocab();
        let shape = Shape { n_layer: 1, n_embd: 32, n_ff: 32, ..spec.shape };
        let spec = TinySpec { shape, ..spec };
        let whole = spec.to_bytes().unwrap();
        let (mut seen, mut refused) = (HashSet::new(), 0);
        let n = 1000;
        for seed in 0..n {
            let Mutation { bytes, changes } = mutation(&whole, seed);
            assert_eq!(mutate(&whole, seed), bytes);
            assert!(!changes.is_empty());
            refused += usize::from(Gguf::read(&bytes[..], bytes.len() as u64).is_err());
            seen.insert(bytes);
        }
        // Damage that the container itself shows, and damage that only a model's loader can see.
        assert!((300..800).contains(&refused), "{refused} refused");
        assert!(seen.len() > 850, "{} differ", seen.len());
    }

    #[test]
    fn anything_can_be_mutated() {
        for bytes in
            [&b""[..], b"GGUF", b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", &[7; 100]]
        {
            (0..200).for_each(|seed| drop(mutate(bytes, seed)));
        }
    }
}
