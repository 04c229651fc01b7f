//! Every family's pieces against an independent regular-expression engine (`tests/oracle/splits.py`).

use minfer_text::PreTokenizer;
use serde_json::Value;

#[test]
fn pieces_are_those_of_the_regular_expressions() {
    let cases: Vec<(String, Value)> = serde_json::from_str(include_str!("data/splits.json")).unwrap();
    assert!(cases.len() > 1500);
    let mut compared = 0;
    for (text, families) in &cases {
        for (name, lengths) in families.as_object().unwrap() {
            let mut pieces = Vec::new();
            PreTokenizer::by_name(name).unwrap().split(text, &mut |piece| pieces.push(piece));
            let found: Vec<u64> = pieces.iter().map(|piece| piece.chars().count() as u64).collect();
            let expected: Vec<u64> =
                lengths.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            assert_eq!(found, expected, "{name}: {text:?} became {pieces:?}");
            assert_eq!(pieces.concat(), *text);
            compared += 1;
        }
    }
    assert_eq!(compared, 5 * cases.len());
}
