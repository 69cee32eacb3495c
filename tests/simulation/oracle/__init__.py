"""What must be true: models as slow and plain as can be, each with the states that a crash may bring back."""
