//! Every family's pieces against an independent regular-expression engine (`tests/oracle/hostile.py`).

mod common;

use minfer_text::PreTokenizer;

#[test]
fn pieces_are_those_of_the_regular_expressions() {
    let texts = common::hostile_texts();
    assert!(texts.len() > 3600);
    let mut families = Vec::new();
    for line in include_str!("data/hostile-splits.txt").lines() {
        let (name, hashes) = line.split_once(' ').unwrap();
        let family = PreTokenizer::by_name(name).unwrap();
        families.push(family);
        let rows = texts.iter().map(|text| {
            let mut pieces = Vec::new();
            family.split(text, &mut |piece| pieces.push(piece));
            assert_eq!(pieces.concat(), *text);
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
            pieces.iter().map(|piece| u32::try_from(piece.chars().count()).unwrap()).collect()
        });
        common::assert_blocks(name, &rows.collect::<Vec<_>>(), hashes);
    }
    for names in PreTokenizer::known_names() {
        let family = PreTokenizer::by_name(names[0]).unwrap();
        assert!(families.contains(&family), "nothing checks {names:?}");
    }
}

#[test]
fn long_runs_take_linear_time() {
    let units = [
        "Z",
        "z",
        "Zz",
        " ",
        "\n",
        " \n",
        "\t",
        "漢",
        "ก",
        "0",
        "٣",
        "1a",
        "'s",
        "\u{301}",
        "A\u{301}",
        "ʰA",
        "<",
        "/",
        "a ",
        "<sentinel:",
        "IMGIMG",
        "e\u{301} ",
        "\u{0}",
        "🙂",
        "。",
        "ABCa",
        "½",
    ];
    for names in PreTokenizer::known_names() {
        let family = PreTokenizer::by_name(names[0]).unwrap();
        for unit in units {
            // With something else at the end, so that what looks ahead looks in vain.
            let text = unit.repeat(131_072 / unit.chars().count()) + "x";
            let begin = std::time::Instant::now();
            let mut length = 0;
            family.split(&text, &mut |piece| length += piece.len());
            assert_eq!(length, text.len());
            assert!(begin.elapsed().as_secs() < 5, "{names:?} {unit:?} took {:?}", begin.elapsed());
        }
    }
}
