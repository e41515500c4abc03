"""What clients keep to themselves: labels that are agreed on under encryption, numbers that are summed in secret."""
